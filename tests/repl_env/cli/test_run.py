"""`repl-env run`: its arguments for the runner, its output, its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from repl_env.cli.run import run
from repl_env.rlm import Trajectory
from repl_env.rlm.budget import Budget, Price
from tests.repl_env.cli import stand_in_runner
from tests.waiting import LONG, PATIENCE

ROOT = Path(__file__).parents[3]
EXAMPLE = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
SCRIPT = "def reply(request):\n    return '```repl\\nFINAL(42)\\n```'\n"


@pytest.fixture
def script(tmp_path):
    """A file with a model in it."""
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def ask(monkeypatch, script):
    """Run the command over the stand-in; its result, and the stand-in that was made."""
    monkeypatch.setitem(sys.modules, "repl_env.rlm.runner", stand_in_runner)
    stand_in_runner.made.clear()
    app = typer.Typer(add_completion=False)
    app.command()(run)

    def call(question, *arguments, input=None):
        given = [question, "--model", f"script:{script}:reply", *arguments]
        return CliRunner(env={"COLUMNS": "200"}).invoke(app, given, input=input)

    return call


def made():
    (runner,) = stand_in_runner.made
    return runner


def test_the_answer_alone_is_on_stdout_and_the_totals_on_stderr(ask):
    done = ask("answer")

    assert (done.exit_code, done.stdout) == (0, "42\x1b[2J\n")
    assert "0 starts (scripted): answer" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "1 turn · 2 calls · 107 tokens in, 13 out · $0.5000 · "
    )


def test_quiet_leaves_stderr_empty(ask):
    done = ask("answer", "--quiet")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "42\x1b[2J\n", "")


def test_json_is_one_object_with_the_totals(ask):
    told = json.loads(ask("answer", "--json").stdout)

    assert (told["answer"], told["answer_value"], told["stop_reason"]) == (
        "42\x1b[2J",
        42,
        "answer",
    )
    assert told["usage"]["input_tokens"] == 107
    assert (told["cost"], told["status"], told["error_kind"]) == (0.5, 0, None)


@pytest.mark.parametrize(
    ("question", "status", "answer", "says"),
    [
        ("budget", 4, "part\n", "the budget ran out"),
        ("exceeded", 4, "", "no calls are left (--budget-calls sets the limit)"),
        ("failing", 1, "", "no answer: max_iterations; the last 2 cells raised NameError: name"),
        ("none", 1, "", "no answer: max_iterations"),
        ("last-reply", 0, "I do not know\n", "max-iterations; the answer is from one more reply"),
        ("lost", 5, "", "no answer: sandbox"),
        ("model-error", 5, "so far\n", "connection: no such host"),
    ],
)
def test_each_ending_has_its_status_and_says_why(ask, question, status, answer, says):
    done = ask(question)

    assert (done.exit_code, done.stdout) == (status, answer)
    assert says in done.stderr
    assert json.loads(ask(question, "--json").stdout)["status"] == status


def test_verbose_shows_code_output_and_errors_and_replies_without_code(ask):
    done = ask("failing", "--verbose")

    assert done.stdout == ""
    for line in (
        "0 turn 1, cell 1:",
        ">>> print(1)",
        "... foo()",
        "one",
        "NameError: name 'foo' is not defined",
        "0 ran no code; the reply was:",
        "I give up \\x1b[2J.",
    ):
        assert f"{line}\n" in done.stderr
    assert ">>>" not in ask("failing").stderr


def test_verbose_and_quiet_exclude_each_other(ask):
    assert ask("answer", "--verbose", "--quiet").exit_code == 2


def test_an_unavailable_tier_exits_3_with_the_remedy(ask):
    done = ask("answer", "--memory", str(stand_in_runner.TOO_MUCH))

    assert done.exit_code == 3
    assert "Ask root." in done.stderr


def test_an_internal_error_is_not_reported_as_a_usage_error(ask):
    assert isinstance(ask("defect").exception, TypeError)


def test_an_argument_that_the_runner_refuses_is_a_usage_error(ask):
    done = ask("bad-schema")

    assert done.exit_code == 2
    assert "answer_schema is no JSON schema" in done.stderr


def test_every_option_reaches_the_runner(ask, script, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text("\ufeff" + '{"type": "integer"}', encoding="utf-8")
    examples = tmp_path / "examples.json"
    examples.write_text(json.dumps([EXAMPLE]), encoding="utf-8")
    done = ask(
        "answer",
        *("--sub-model", f"script:{script}:reply", "--max-depth", "3", "--max-iterations", "7"),
        *("--budget-calls", "9", "--budget-tokens", "1_000:50", "--budget-usd", "1.5"),
        *("--budget-seconds", "60", "--price", "a/b:free=1:2.5", "--blocks", "until_error"),
        *("--price", "model:reply=0:0"),
        *("--isolation", "confined", "--require", "confined", "--preload", "json,math"),
        *("--preload", "re", "--timeout", "5", "--memory", "100MiB", "--schema", str(schema)),
        *("--trajectory", str(tmp_path / "run.jsonl"), "--prompts", "short"),
        *("--examples", str(examples), "--prefix", "```repl\\n"),
    )
    given = made().arguments

    assert done.exit_code == 0, done.stderr
    assert given["budget"] == Budget(9, 1000, 50, 1.5, 60.0)
    assert given["prices"] == {"a/b:free": Price(1.0, 2.5), "model:reply": Price(0.0, 0.0)}
    assert (given["max_depth"], given["max_iterations"], given["blocks"]) == (3, 7, "until_error")
    assert (given["isolation"], given["require"]) == ("confined", "confined")
    assert given["preload"] == ("json", "math", "re")
    assert (given["limits"].timeout, given["limits"].memory) == (5.0, 100 << 20)
    assert given["trajectory"] == tmp_path / "run.jsonl"
    assert (given["prompts"], given["prefix"]) == ("short", "```repl\n")
    assert [list(each) for each in given["examples"]] == [EXAMPLE]
    assert given["sub_model"].name == "model:reply"
    assert made().asked["answer_schema"] == {"type": "integer"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([EXAMPLE, EXAMPLE]),
        "\n".join([json.dumps({"messages": EXAMPLE})] * 2),
        "\n".join([json.dumps(EXAMPLE)] * 2) + "\n\n",
        json.dumps([{"messages": EXAMPLE}] * 2),
    ],
    ids=["lists", "lines of objects", "lines of lists", "objects"],
)
def test_examples_are_read_in_each_form(ask, tmp_path, text):
    (tmp_path / "examples").write_text(text)
    assert ask("answer", "--examples", str(tmp_path / "examples")).exit_code == 0
    assert [list(each) for each in made().arguments["examples"]] == [EXAMPLE, EXAMPLE]


def test_one_context_is_called_context_and_several_have_the_names_of_their_files(ask, tmp_path):
    first, second = tmp_path / "the log-1.txt", tmp_path / "2024.txt"
    third = tmp_path / "re\u0301sume\u0301.txt"  # as other systems write é, and no code can
    first.write_text("a")
    third.write_text("c")
    second.write_text("b")

    ask("answer", "--context", str(first))
    assert made().asked["context"] == first
    stand_in_runner.made.clear()

    ask("answer", "--context", str(first), "--context", str(second), "--context", f"log={second}")
    assert made().asked["contexts"] == {"the_log_1": first, "_2024": second, "log": second}
    stand_in_runner.made.clear()

    ask("answer", "--context", str(first), "--context", str(third))
    assert made().asked["contexts"] == {"the_log_1": first, "r\xe9sum\xe9": third}


@pytest.mark.parametrize("option", [("--stdin",), ("--context", "-")])
def test_standard_input_can_be_the_context(ask, option):
    assert ask("answer", *option, input="\ufeffsome text").exit_code == 0
    assert made().asked["context"] == "some text"


def test_standard_input_that_is_no_text_stays_bytes(ask):
    ask("answer", "--stdin", input=b"\xff\x00")

    assert made().asked["context"] == b"\xff\x00"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--context", "no-such-file"], "no-such-file: No such file"),
        (["--context", "{tmp}"], "is a directory"),
        (["--context", "{tmp}/model.py", "--context", "{tmp}/model.py"], "already"),
        (["--context", "1x={tmp}/model.py"], "'1x' cannot name a variable"),
        (["--context", "-", "--stdin"], "once only"),
        (["--schema", "no-such-schema"], "no-such-schema"),
        (["--schema", "{tmp}/model.py"], "is not JSON"),
        (["--schema", "{tmp}/deep.json"], "is not JSON"),
        (["--trajectory", "{tmp}/none/run.jsonl"], "no directory"),
        (["--trajectory", "{tmp}", "--force"], "is a directory"),
        (["--trajectory", "/dev/null", "--force"], "/dev/null: Not a regular file"),
        (["--force"], "--force goes with --trajectory"),
        (["--price", "model=1"], "must be MODEL=IN:OUT"),
        (["--price", "model=1:nan"], "must be MODEL=IN:OUT"),
        (["--budget-tokens", "many"], "'many' is not a number"),
        (["--budget-usd", "-1"], "--budget-usd: '-1.0' must be"),
        (["--memory", "much"], "memory='much'"),
        (["--blocks", "some"], "some"),
        (["--prompts", "tiny"], "tiny"),
        (["--examples", "no-such-file"], "no-such-file: No such file"),
        (["--examples", "{tmp}/model.py"], "model.py: Expecting value"),
        (["--examples", "{tmp}/no-role.json"], "no-role.json: examples[0]"),
        (["--examples", "{tmp}/number.json"], "number.json: "),
        (["--examples", "{tmp}/deep.json"], "deep.json: "),
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "0"], "max-tokens"),
        (["--seed", "7"], "a script samples by itself, and takes no seed"),
        (["--max-depth", "0"], "max-depth"),
    ],
)
def test_bad_arguments_are_usage_errors_that_name_them(ask, tmp_path, arguments, says):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    (tmp_path / "no-role.json").write_text('[[{"content": "x"}]]')
    (tmp_path / "number.json").write_text("7")
    done = ask("answer", *(one.replace("{tmp}", str(tmp_path)) for one in arguments))

    assert done.exit_code == 2, done.output
    assert says in " ".join(done.stderr.split())
    assert stand_in_runner.made == []


def test_ctrl_c_cancels_the_run_prints_its_partial_result_and_exits_130(script):
    program = (
        "import sys\n"
        "from tests.repl_env.cli import stand_in_runner\n"
        "sys.modules['repl_env.rlm.runner'] = stand_in_runner\n"
        "from repl_env.cli.main import main\n"
        "main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, "run", "wait", "--model", f"script:{script}:reply"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)

    assert (child.returncode, out) == (130, "half\n")
    assert "interrupted" in err
    assert "2 calls" in err


def real(script, *arguments):
    """`repl-env run` with the model of the file `script`, in a process of its own."""
    given = ["run", "?", "--model", f"script:{script}:reply", *arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "repl_env", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("so far", "the last 3 turns ran no code"),
        ("```python\nprint((1", "the last 3 cells raised SyntaxError: '(' was never closed"),
    ],
)
def test_a_run_whose_replies_were_all_cut_says_so(script, reply, said):
    script.write_text(
        "from repl_env.llm.base import Completion, ModelUsage\n\ndef reply(request):\n"
        f"    return Completion({reply!r}, ModelUsage(output_tokens=96), finish_reason='length')\n"
    )
    with real(script, "--max-iterations", "2") as child:
        _, err = child.communicate(timeout=LONG)

    cut = "all of their replies were cut at 96 tokens, the limit of a reply"
    assert f"{said}: {cut} (max_tokens, --max-tokens)" in " ".join(err.split())


def test_sub_calls_that_the_budget_refused_are_counted_beside_an_answer(script):
    script.write_text(
        "CODE = 'FINAL(len(llm_query_batched([str(n) for n in range(10)])))'\n\n"
        "def reply(request):\n"
        "    asked = request.messages[-1]['content']\n"
        "    return 'ok' if asked.isdigit() else f'```repl\\n{CODE}\\n```'\n"
    )
    with real(script, "--budget-calls", "5") as child:
        out, err = child.communicate(timeout=LONG)
    assert (child.returncode, out) == (0, "10\n")
    assert "6 sub-calls were refused by the budget" in err
    with real(script, "--budget-calls", "5", "--json") as child:
        assert json.loads(child.communicate(timeout=LONG)[0])["refused_calls"] == 6


def test_a_missing_model_says_what_there_is(script):
    command = [sys.executable, "-m", "repl_env", "run", "?"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=script.parent)

    assert done.returncode == 2
    assert "--model: it is missing. The model: NAME at --base-url" in " ".join(done.stderr.split())


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_script_that_leaves_the_process_is_a_model_that_failed(script, kind):
    script.write_text(f"import sys\n{kind} reply(request):\n    sys.exit(4)\n")
    with real(script, "--json") as child:
        out, err = child.communicate(timeout=LONG)
    told = json.loads(out)

    assert (child.returncode, told["status"], told["error_kind"]) == (5, 5, "llm"), err
    assert "SystemExit: 4" in told["reason"]


def test_one_ctrl_c_ends_a_run_whose_script_blocks(script):
    script.write_text(
        "import threading\n"
        "def reply(request):\n    print('asked', flush=True)\n    threading.Event().wait()\n"
    )
    with real(script) as child:
        assert child.stdout.readline() == "asked\n"
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()

    assert (child.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err


def test_a_script_answers_through_the_real_runner(tmp_path, script):
    app = typer.Typer(add_completion=False)
    app.command()(run)
    context = tmp_path / "text.txt"
    context.write_text("one two three")
    script.write_text(
        "def reply(request):\n    return '```repl\\nFINAL(len(context.split()))\\n```'\n"
    )
    trajectory = tmp_path / "run.jsonl"
    done = CliRunner().invoke(
        app,
        [
            *("How many words?", "--model", f"script:{script}:reply"),
            *("--context", str(context), "--trajectory", str(trajectory)),
        ],
    )

    assert (done.exit_code, done.stdout) == (0, "3\n"), done.stderr
    assert trajectory.stat().st_size > 0
    assert "figure" not in done.stderr


def test_a_run_that_draws_says_where_its_figures_are(tmp_path, script):
    app = typer.Typer(add_completion=False)
    app.command()(run)
    plot = "import matplotlib.pyplot as plt\\nplt.plot([1, 2])\\nplt.show()\\nFINAL(1)"
    script.write_text(f"def reply(request):\n    return '```repl\\n{plot}\\n```'\n")
    asked = ("Draw.", "--model", f"script:{script}:reply", "--verbose")
    done = CliRunner().invoke(app, asked)
    end = "1 figure: --trajectory FILE keeps it, repl-env view FILE shows it"
    assert done.stderr.splitlines()[-1] == end
    assert "(1 figure)" in done.stderr
    path = tmp_path / "a run.jsonl"
    done = CliRunner().invoke(app, [*asked, "--trajectory", str(path)])
    assert done.stderr.splitlines()[-1] == f"1 figure: repl-env view '{path}' shows it"


def test_a_limit_in_dollars_without_a_price_says_what_is_missing(script):
    app = typer.Typer(add_completion=False)
    app.command()(run)
    given = ["?", "--model", f"script:{script}:reply", "--budget-usd", "1"]
    done = CliRunner().invoke(app, given)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "give --price model:reply=IN:OUT" in " ".join(done.stderr.replace("│", " ").split())
    assert CliRunner().invoke(app, [*given, "--price", "model:reply=1:1"]).stdout == "42\n"


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (("--budget-calls", "0"), "0 of 0 calls are used (--budget-calls sets the limit)"),
        (("--budget-tokens", "10"), "input tokens (--budget-tokens sets the limit)"),
        (
            ("--budget-usd", "1e-9", "--price", "model:reply=1:1"),
            "input tokens and one output token (--budget-usd sets the limit)",
        ),
    ],
)
def test_a_budget_that_is_too_small_names_its_option_and_the_next_reservation(script, budget, says):
    app = typer.Typer(add_completion=False)
    app.command()(run)
    done = CliRunner().invoke(app, ["?", "--model", f"script:{script}:reply", *budget])

    assert (done.exit_code, done.stdout) == (4, "")
    assert says in done.stderr
    assert budget[0] == "--budget-calls" or "the next call would reserve" in done.stderr


def test_a_trajectory_that_is_there_is_replaced_by_force_alone(script, tmp_path):
    app = typer.Typer(add_completion=False)
    app.command()(run)
    link, file = tmp_path / "link.jsonl", tmp_path / "run.jsonl"
    file.write_text("mine")
    link.symlink_to(file)
    given = ["?", "--model", f"script:{script}:reply", "--trajectory", str(link)]
    refused = CliRunner(env={"COLUMNS": "200"}).invoke(app, given)

    assert refused.exit_code == 2
    assert f"{link} exists; --force replaces it" in refused.stderr
    assert file.read_text() == "mine"
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*given, "--force"])
    assert (done.exit_code, done.stdout) == (0, "42\n")
    assert link.is_symlink() and Trajectory.load(file).root.final_answer == "42"
