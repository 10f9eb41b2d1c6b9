"""`repl-env repl`: through pipes, and typed into a terminal."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[2]
MAIN = "from repl_env.cli.main import main; main()"
COMMAND = [sys.executable, "-c", MAIN, "repl"]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}


def piped(text, *arguments, **more):
    """Run the command with `text` at its standard input."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        capture_output=True,
        text=not isinstance(text, bytes),
        timeout=60,
        check=False,
        cwd=more.get("cwd", ROOT),
        env={**CLEAN, "COLUMNS": "120"},
    )


def told(text, *arguments):
    """The JSON objects that come of `text`."""
    done = piped(text, "--json", *arguments)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


# ── pipes ────────────────────────────────────────────────────────────────────────────────────────


def test_cells_of_a_pipe_are_statements_and_share_their_variables():
    done = piped(
        "x = 6\n"
        "x * 7\n"
        "def f(n):\n"
        "    total = 0\n"
        "\n"
        "    return total + n\n"
        "f(5)\n"
        "if x: 'yes'\n"
        "else: 'no'\n"
        "for i in range(2):\n"
        "    print(i, end=' ')"
    )

    assert (done.stdout, done.stderr, done.returncode) == ("42\n5\n'yes'\n0 1 ", "", 0)


def test_an_error_goes_to_stderr_the_next_cell_runs_and_the_status_is_1():
    done = piped("1 / 0\nprint('on')\n")

    assert (done.stdout, done.returncode) == ("on\n", 1)
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert done.stderr.startswith("Traceback (most recent call last):\n")


def test_what_is_notable_is_said_and_only_that():
    done = piped(
        "x = 1\nimport os\nos._exit(3)\nx\nimport time\ntime.sleep(60)\n", "--timeout", "1"
    )

    assert done.stdout == "1\n"
    assert "[the cell ended its process; the session is back at the state before the cell]" in (
        done.stderr
    )
    assert re.search(r"\[timed out after 1\S* s; variables are kept\]", done.stderr)


def test_json_has_one_object_for_each_cell_and_command():
    first, second, third, fourth = told("x = [1]\nprint('a'); x\n1 / 0\n:vars\n")

    assert (first["cell"], first["outcome"], first["ok"]) == (1, "finished", True)
    assert first["changes"][0]["name"] == "x"
    assert (second["stdout"], second["value"]) == ("a\n", "[1]")
    assert (third["outcome"], third["error"]["type"]) == ("raised", "ZeroDivisionError")
    assert (fourth["command"], fourth["ok"]) == (":vars", True)
    assert "list" in fourth["text"]


def test_json_answers_before_the_next_cell_is_written():
    child = subprocess.Popen(
        [*COMMAND, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    for code, value in (("20 + 1\n", "21"), ("for _ in [1]:\n    7\n\n\n", None), ("2\n", "2")):
        child.stdin.write(code)
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["value"] == value
    child.stdin.close()

    assert child.wait(timeout=30) == 0
    child.stdout.close()


def test_contexts_are_variables(tmp_path):
    text, data = tmp_path / "notes.txt", tmp_path / "data.bin"
    text.write_text("häh")
    data.write_bytes(b"\xff")

    assert told("context", "--context", str(text))[0]["value"] == "'häh'"
    both = ["--context", str(text), "--context", f"raw={data}"]
    assert told("notes, raw", *both)[0]["value"] == "('häh', b'\\xff')"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--context", "no-such-file"], 2, "no-such-file"),
        (["--context", "-"], 2, "standard input holds the cells"),
        (["--memory", "much"], 2, "memory='much'"),
        (["--timeout", "-1"], 2, "timeout"),
        (["--isolation", "process", "--require", "jailed"], 2, "weaker"),
        (["--preload", "no_such_module"], 5, "no_such_module"),
    ],
)
def test_bad_arguments_are_named(arguments, status, says):
    done = piped("1\n", *arguments)

    assert (done.returncode, done.stdout) == (status, "")
    assert says in " ".join(done.stderr.replace("│", " ").split())


def test_a_language_policy_holds_and_preloaded_modules_are_there():
    assert told("import os", "--language", "restricted")[0]["error"]["type"] == "PolicyError"
    assert told("import sys; 'json.tool' in sys.modules", "--preload", "json.tool")[0]["value"] == (
        "True"
    )


def test_commands_do_what_they_say(tmp_path):
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
    done = piped(script, "--json", cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
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
        (":load /dev/null", "checkpoint"),
        (":back", "no branch"),
        (":undo many", "'many' is no number of cells"),
        (":undo 5", "n"),
        (":timeout never", "'never'"),
        (":timeout -1", "timeout"),
        (":figure x.png", "no cell has shown a figure"),
    ],
)
def test_a_command_that_cannot_be_done_says_why_and_the_session_goes_on(shell_of, line, says):
    first, second = shell_of(line, "1 + 1")

    assert (first["ok"], second["value"]) == (False, "2")
    assert says in first["text"]


@pytest.fixture(scope="module")
def shell_of():
    """Runs lines in one process, so that each case costs no start of its own."""
    child = subprocess.Popen(
        [*COMMAND, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )

    def run(*lines):
        answers = []
        for line in (":reset", *lines):
            child.stdin.write(line + "\n")
            child.stdin.flush()
            answers.append(json.loads(child.stdout.readline()))
        return answers[1:]

    yield run
    child.stdin.close()
    child.wait(timeout=30)
    child.stdout.close()


def test_get_replaces_no_file_and_writes_only_here(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    script = (
        "import os\n"
        "os.makedirs('a/b')\n"
        "open('mine.txt', 'w').write('theirs') + open('a/b/deep.txt', 'w').write('deep')\n"
        ":get mine.txt\n"
        ":get a/b/deep.txt\n"
        ":get ../../etc/passwd\n"
    )
    done = piped(script, cwd=tmp_path)

    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "mine.txt: File exists" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["deep.txt", "mine.txt"]


def test_figures_can_be_saved(tmp_path):
    script = (
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\n"
        "plt.figure(); plt.plot([2, 1])\n"
        f":figure {tmp_path}/plot.png\n"
    )
    lines = told(script, "--timeout", "60")
    figures = [figure for line in lines for figure in line.get("figures", ())]

    assert figures
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert base64.b64decode(figures[-1]).startswith(b"\x89PNG")


def test_bytes_that_are_no_text_are_no_end():
    done = piped(b"x = '\xff'\nlen(x)\n")

    assert (done.returncode, done.stdout) == (0, b"1\n")


def test_a_reader_that_leaves_ends_it_quietly():
    child = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    child.stdout.close()
    child.stdin.write("print('x')\nprint('y')\n")
    child.stdin.close()

    assert child.stderr.read() == ""
    assert child.wait(timeout=30) == 1
    child.stderr.close()


def test_output_that_is_no_terminal_is_passed_as_it_is():
    assert piped("print('\\x1b[2J', end='')").stdout == "\x1b[2J"


# ── terminals ────────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """A terminal with the command in it: what is typed, and what stands there without colours."""

    def __init__(self, state, *arguments):
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", MAIN, "repl", *arguments],
            cwd=ROOT,
            env={**CLEAN, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state)},
            encoding="utf-8",
            timeout=30,
            dimensions=(30, 100),
        )
        self.ready()

    def ready(self):
        """Wait for the next prompt; what was written before it."""
        self.child.expect(r">>> ")
        return re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>78])", "", self.child.before)

    def run(self, text):
        """Type a line and Enter; what is there at the next prompt."""
        self.child.send(text + "\r")
        # The prompt is drawn anew with each key until the line is over.
        self.child.expect(r"\x1b\[\?2004l")
        return self.ready()

    def close(self):
        """Leave with Ctrl-D; the exit status."""
        self.child.send("\x04")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def terminal(tmp_path):
    """Opens terminals that end with the test."""
    opened = []

    def start(*arguments):
        opened.append(Terminal(tmp_path, *arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


def test_a_person_sees_values_output_and_errors_and_leaves_with_ctrl_d(terminal):
    here = terminal()

    assert "42" in here.run("6 * 7")
    assert "hi" in here.run("print('hi', end='')")
    assert "ZeroDivisionError: division by zero" in here.run("1 / 0")
    assert here.close() == 0


def test_ctrl_c_interrupts_the_cell_and_keeps_the_variables(terminal):
    here = terminal()
    here.run("x = 123456")
    here.child.send("print('go'); import time; time.sleep(60)\r")
    here.child.expect("\r\ngo")
    here.child.send("\x03")

    assert "KeyboardInterrupt" in here.ready()
    assert "123456" in here.run("x")


def test_a_second_ctrl_c_ends_a_cell_that_ignores_the_first(terminal):
    here = terminal()
    here.run("x = 123456")
    here.run("import signal")
    here.child.send("_ = signal.signal(2, signal.SIG_IGN); print('go')\nwhile True: pass\x1b\r")
    here.child.expect("\r\ngo")
    here.child.send("\x03")
    here.child.expect("Ctrl-C again ends it")
    here.child.send("\x03")

    assert "the cell was ended" in here.ready()
    assert "123456" in here.run("x")


def test_ctrl_c_at_the_prompt_drops_what_was_typed(terminal):
    here = terminal()
    here.child.send("never = 1")
    here.child.send("\x03")
    here.ready()

    assert "NameError" in here.run("never")


def test_a_block_is_typed_with_indentation_and_ends_with_an_empty_line(terminal):
    here = terminal()
    here.child.send("def f(n):\r")
    here.child.expect(r"\.\.\. ")
    here.child.send("return n + 1\r")
    here.child.send("\r")
    here.ready()

    assert "42" in here.run("f(41)")


def test_tab_completes_names_and_attributes_and_changes_nothing(terminal):
    here = terminal()
    here.run("counted = []")
    here.run("class A: __dir__ = lambda self: counted.append(1) or ['attribute_of_a']")
    here.child.send("\r")
    here.ready()
    here.run("some_long_name = A()")
    here.child.send("some_lo\t")
    here.child.expect("some_long_name")
    here.child.send(".attr\t")
    here.child.expect("attribute_of_a")
    here.child.send("\x03")
    here.ready()

    assert "[]" in here.run("counted")


def test_the_history_is_kept_for_the_user_alone(terminal, tmp_path):
    terminal().run("remembered = 1")
    file = tmp_path / "repl-env" / "history"

    assert "remembered = 1" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0

    second = terminal()
    second.child.send("\x1b[A")
    second.child.expect("remembered")


def test_a_history_that_cannot_be_written_stops_nobody(terminal, tmp_path):
    (tmp_path / "repl-env").write_text("a file where the folder would be")

    assert "42" in terminal().run("6 * 7")


def test_output_cannot_steer_the_terminal(terminal):
    here = terminal()
    here.child.send("print('\\x1b]0;title\\x07\\x1b[2J' + '\\x1b[31mred')\r")
    here.child.expect(re.escape("^[]0;title^G^[[2J\x1b[31mred"))
    here.ready()


@pytest.mark.parametrize("word", ["exit", "quit()", ":quit"])
def test_words_that_leave_other_shells_leave_this_one(terminal, word):
    here = terminal()
    here.child.send(f"{word}\r")
    here.child.expect(pexpect.EOF)
    here.child.close()

    assert here.child.exitstatus == 0


def test_a_branch_shows_in_the_prompt(terminal):
    here = terminal()
    here.child.send(":branch\r")
    here.child.expect("branch 1>>> ")


def test_the_banner_says_how_the_session_is_held(terminal, tmp_path):
    child = pexpect.spawn(
        sys.executable,
        ["-c", MAIN, "repl"],
        cwd=ROOT,
        encoding="utf-8",
        timeout=30,
        env={**CLEAN, "XDG_STATE_HOME": str(tmp_path)},
    )
    child.expect(r"tier (jailed|confined)")
    child.close(force=True)


def test_a_signal_while_a_piped_cell_runs_interrupts_that_cell():
    child = subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    child.stdin.write("print('go'); import time; time.sleep(60)\n")
    child.stdin.flush()
    assert child.stdout.readline() == "go\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate("print('next')\n", timeout=30)

    assert (out, child.returncode) == ("next\n", 1)
    assert "KeyboardInterrupt" in err
