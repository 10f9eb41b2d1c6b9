"""`repl-env repl`, through pipes."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import typer
from prompt_toolkit.history import InMemoryHistory
from typer.testing import CliRunner

import repl_sandbox
from repl_env.cli.cells import JSONScreen, cells, notable
from repl_env.cli.line_editor import history_in
from repl_env.cli.repl import repl
from repl_env.cli.shell import Shell, ShellExit, run_command
from repl_sandbox import Killed, Limits, Sandbox

ROOT = Path(__file__).parents[4]
COMMAND = [sys.executable, "-m", "repl_env", "repl"]


@pytest.fixture(scope="module")
def sandbox():
    """One template for all shells in this process."""
    with Sandbox(limits=Limits(timeout=60), history=4) as sandbox:
        yield sandbox


@pytest.fixture
def told(sandbox):
    """Runs text in a shell of its own and returns the resulting JSON objects."""

    def run(text):
        out = io.StringIO()
        shell = Shell(sandbox, JSONScreen(out), run_command)
        shell.run_all(cells(text.splitlines(keepends=True)))
        shell.close()
        return [json.loads(line) for line in out.getvalue().splitlines()]

    return run


def command(text, *arguments):
    """Run the command in this process with `text` at its standard input."""
    app = typer.Typer(add_completion=False)
    app.command()(repl)
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments, input=text)


def opened(*arguments):
    """The command as a process of its own, with pipes."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


# ── pipes ────────────────────────────────────────────────────────────────────────────────────────


def test_cells_of_a_pipe_are_statements_and_share_their_variables():
    done = command(
        "x = 6\n"
        "x * 7\n"
        "def f(n):\n"
        "    total = 0\n"
        "\n"
        "    return total + n\n"
        "f(5)\n"
        "if x: print('yes')\n"
        "else: print('no')\n"
        "for i in range(2):\n"
        "    print(i, end=' ')"
    )

    assert (done.stdout, done.stderr, done.exit_code) == ("42\n5\nyes\n0 1 ", "", 0)


PROGRAM = r'''#!/usr/bin/env python3
# -*- coding: utf-8 -*-
from __future__ import annotations

import functools
import sys


class Base:
	limit = 3


	def size(self) -> Missing:
		return self.limit


class Shape(Base):

    """A docstring

class No:

    pass
"""


    @property


    def area(self):

# A comment at the first column.


        def inner():
            return [
1,


2,
]


        return inner()

    @functools.lru_cache
    # between
    def two(self): return 2


if Shape().two() == 2:
    print("two")


# between the branches


else:


    print("other")
try:
    1 / 0


except ZeroDivisionError:
    print("caught")

finally:


    print("finally")
for i in range(2): print(i)
else: print("done")
match Shape().area:
    case [1, *rest]:


        print(rest)
text = """
:vars


def no(
"""
total = 1 + \
    2 + \
3
print(len(text), total, [1, 2][
:1
], "é"
)
def main():


    print(Shape().size())
    return 4


if __name__ == "__main__":
    sys.exit(main())'''


def test_a_file_runs_as_under_the_python_interpreter():
    source = f"\ufeff{PROGRAM}".replace("\n", "\r\n").encode()
    python = subprocess.run([sys.executable], input=source, capture_output=True, check=False)
    done = command(source)

    assert python.stderr == b""
    assert (done.stdout, done.stderr) == (python.stdout.decode(), "")
    assert done.exit_code == python.returncode == 4


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("import sys\nsys.exit()\nprint('on')", 0, ""),
        ("raise SystemExit(7)\nprint('on')", 7, ""),
        ("if True:\n    exit('last words')\nprint('on')", 1, "last words\n"),
    ],
)
def test_an_exit_of_the_code_ends_the_input_as_a_program(code, status, stderr):
    done = command(code)
    assert (done.stdout, done.stderr, done.exit_code) == ("", stderr, status)


def test_with_json_an_exit_of_the_code_ends_its_cell_alone():
    done = command("raise SystemExit(7)\n1 + 1\n", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["error"]["type"], second["value"], done.exit_code) == ("SystemExit", "2", 1)


def test_an_error_goes_to_stderr_the_next_cell_runs_and_the_status_is_1():
    done = command("1 / 0\nprint('on')\n")

    assert (done.stdout, done.exit_code) == ("on\n", 1)
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert done.stderr.startswith("Traceback (most recent call last):\n")


def test_only_notable_outcomes_are_reported(monkeypatch):
    # However long the code takes to heed its interrupt.
    monkeypatch.setattr(repl_sandbox, "Limits", partial(Limits, grace=60.0), raising=False)
    done = command("x = 1\nimport os\nos._exit(3)\nx\nimport time\n:timeout 0.5\ntime.sleep(600)\n")

    assert done.stdout == "1\n0.5 s\n"
    assert "[the cell ended its process; the session is back at the state before the cell]" in (
        done.stderr
    )
    assert re.search(r"\[timed out after [\d.]+ s; variables are kept\]", done.stderr)


def test_a_cell_out_of_memory_is_reported_with_the_limit():
    outcome = Killed(reason="memory", state="kept", limits=("memory", "processes"))
    assert notable(outcome, 64 << 20) == [
        "[out of memory: the limit is 64 MiB; variables are kept]",
        "[limit reached: too many processes]",
    ]


def test_json_has_one_object_for_each_cell_and_command(told):
    first, second, third, fourth = told("x = [1]\nprint('a'); x\n1 / 0\n:vars\n")

    assert (first["cell"], first["outcome"], first["ok"]) == (1, "finished", True)
    assert first["changes"][0]["name"] == "x"
    assert (second["stdout"], second["value"]) == ("a\n", "[1]")
    assert (third["outcome"], third["error"]["type"]) == ("raised", "ZeroDivisionError")
    assert (fourth["command"], fourth["ok"]) == (":vars", True)
    assert "list" in fourth["text"]


def test_json_answers_before_the_next_cell_is_written():
    with opened("--json") as child:
        for code, value in (("20 + 1\n", "21"), ("for _ in [1]:\n    7\n\n\n", None), ("2\n", "2")):
            child.stdin.write(code)
            child.stdin.flush()
            assert json.loads(child.stdout.readline())["value"] == value
        child.stdin.close()

        assert child.wait(timeout=120) == 0


def test_contexts_are_variables(tmp_path):
    text, data = tmp_path / "notes.txt", tmp_path / "data.bin"
    text.write_text("häh")
    data.write_bytes(b"\xff")

    assert command("context", "--context", str(text)).stdout == "'häh'\n"
    both = ["--context", str(text), "--context", f"raw={data}"]
    assert command("notes, raw", *both).stdout == "('häh', b'\\xff')\n"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--context", "no-such-file"], 2, "no-such-file"),
        (["--context", "/proc/self/mem"], 2, "/proc/self/mem: Input/output error"),
        (["--context", "-"], 2, "standard input holds the cells"),
        (["--memory", "much"], 2, "memory='much'"),
        (["--timeout", "-1"], 2, "timeout"),
        (["--isolation", "process", "--require", "jailed"], 2, "weaker"),
        (["--preload", "no_such_module"], 5, "no_such_module"),
    ],
)
def test_bad_arguments_are_named(arguments, status, says):
    done = command("1\n", *arguments)

    assert (done.exit_code, done.stdout) == (status, "")
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_language_policy_and_preloaded_modules_apply():
    done = command("import os\n", "--language", "restricted", "--json")
    assert json.loads(done.stdout)["error"]["type"] == "PolicyError"

    done = command("import sys; 'json.tool' in sys.modules", "--preload", "json.tool")
    assert done.stdout == "True\n"


def test_every_command_of_the_shell_works(told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, saved = tmp_path / "in.txt", tmp_path / "saved"
    source.write_text("inside")
    script = (
        "x = 1\n"
        "x = 2\n"
        ":undo\n"
        "x\n"
        ":branch\n"
        "x = 3; open('made.txt', 'w').write('made')\n"
        ":back\n"
        "x\n"
        f":put {source}\n"
        "open('in.txt').read()\n"
        ":files\n"
        "y = x + 1\n"
        f":save {saved}\n"
        ":reset\n"
        ":vars\n"
        f":load {saved}\n"
        "y\n"
        ":timeout 7\n"
        ":iso\n"
        "open('out.txt', 'w').write('out')\n"
        ":get out.txt\n"
    )
    lines = told(script)
    values = [line["value"] for line in lines if line.get("value") is not None]
    texts = {line["command"].split()[0]: line["text"] for line in lines if "command" in line}

    assert all(line["ok"] for line in lines), lines
    assert values == ["1", "4", "1", "'inside'", "2", "3"]
    assert texts[":undo"] == "the last cell is undone"
    assert "in.txt" in texts[":files"] and "made.txt" not in texts[":files"]
    assert texts[":vars"] == "no variables"
    assert texts[":load"].startswith("2 variables")
    assert texts[":timeout"] == "7 s"
    assert "seccomp" in texts[":iso"]
    assert (tmp_path / "out.txt").read_text() == "out"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (":nothing", "There is no command :nothing"),
        (":b", ":b may be :branch, :back"),
        (":put", ":put needs PATH"),
        (":vars now", ":vars takes nothing"),
        (":put no-such-file", "no-such-file: No such file"),
        (":get no-such-file", "no-such-file"),
        (":load /dev/null", "is a device"),
        (":back", "no branch"),
        (":undo many", "'many' is no number of cells"),
        (":undo 5", "n"),
        (":timeout never", "'never'"),
        (":timeout -1", "timeout"),
        (":figure x.png", "no cell has shown a figure"),
        (":page x.html", "no cell has run"),
    ],
)
def test_a_failing_command_reports_its_reason_and_the_session_goes_on(told, line, says):
    first, second = told(f"{line}\n1 + 1\n")

    assert (first["ok"], second["value"]) == (False, "2")
    assert says in first["text"]


def test_get_replaces_no_file_and_writes_only_to_the_current_folder(told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    script = (
        "import os\n"
        "os.makedirs('a/b')\n"
        "open('mine.txt', 'w').write('theirs') + open('a/b/deep.txt', 'w').write('deep')\n"
        ":get mine.txt\n"
        ":get a/b/deep.txt\n"
        ":get ../../etc/passwd\n"
    )
    texts = [line["text"] for line in told(script) if "command" in line]

    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert texts[0] == "mine.txt: File exists"
    assert sorted(os.listdir(tmp_path)) == ["deep.txt", "mine.txt"]


def test_figures_can_be_saved(told, tmp_path):
    script = (
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\n"
        "plt.figure(); plt.plot([2, 1])\n"
        f":figure {tmp_path}/plot.png\n"
    )
    lines = told(script)
    figures = [figure for line in lines for figure in line.get("figures", ())]

    assert figures
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert base64.b64decode(figures[-1]).startswith(b"\x89PNG")


def test_the_last_cell_can_be_saved_as_a_page(told, tmp_path):
    table = "<table><tr><td>cell</td></tr></table>"
    script = (
        f"from IPython.display import HTML; print('printed'); HTML({table!r})\n"
        f":page {tmp_path}/page.html\n:page {tmp_path}/page.html\n"
    )
    replies = [line["text"] for line in told(script) if "command" in line]
    page = (tmp_path / "page.html").read_text()

    assert "bytes" in replies[0] and "File exists" in replies[1]
    assert "default-src 'none'" in page and "<pre>printed\n</pre>" in page
    assert "<iframe sandbox" in page and html.escape(table) in page and table not in page


def test_invalid_utf8_does_not_end_the_shell():
    done = command(b"x = '\xff'\nlen(x)\n")

    assert (done.exit_code, done.stdout) == (0, "1\n")


def test_a_closed_output_pipe_ends_the_shell_without_an_error():
    with opened() as child:
        child.stdout.close()
        child.stdin.write("print('x')\nprint('y')\n")
        child.stdin.close()

        assert child.stderr.read() == ""
        assert child.wait(timeout=120) == 1


def test_a_signal_interrupts_the_cell_of_a_pipe_and_the_next_one_runs():
    with opened() as child:
        child.stdin.write("print('go'); import time; time.sleep(60)\n")
        child.stdin.flush()
        assert child.stdout.readline() == "go\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate("print('next')\n", timeout=120)

    assert (out, child.returncode) == ("next\n", 1)
    assert "KeyboardInterrupt" in err


def test_output_to_a_pipe_is_unchanged():
    assert command("print('\\x1b[2J', end='')").stdout == "\x1b[2J"


def test_a_lost_session_can_be_started_again(sandbox):
    out = io.StringIO()
    shell = Shell(sandbox, JSONScreen(out), run_command, values={"x": "first"})
    shell.session.close()
    shell.run_all(["1", ":reset", "x"])
    shell.close()
    gone, reset, value = map(json.loads, out.getvalue().splitlines())

    assert (gone["ok"], reset["ok"], value["value"]) == (False, True, "'first'")
    assert ":reset" in gone["text"]


@pytest.mark.parametrize("word", ["exit", "quit", "exit()", "quit()", ":quit", ":q"])
def test_exit_commands_of_other_shells_leave_this_one(sandbox, word):
    shell = Shell(sandbox, JSONScreen(io.StringIO()), run_command)
    with pytest.raises(ShellExit):
        shell.run(word)
    shell.close()


def test_an_unwritable_history_is_no_error(tmp_path):
    (tmp_path / "repl-env").write_text("a file where the folder would be")

    assert isinstance(history_in({"XDG_STATE_HOME": str(tmp_path)}), InMemoryHistory)
