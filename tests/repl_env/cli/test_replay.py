"""`repl-env replay` shows the contents of a trajectory, and exits with a status for its result."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from rich.console import Console
from typer.testing import CliRunner

from repl_env.cli.main import GROUP, build
from repl_env.cli.trees import print_differences, print_tree
from repl_env.common.values import visible
from repl_env.rlm import RLM, ScriptedModel, Trajectory
from repl_env.rlm.replay import RunDifference
from tests.repl_env.rlm.trajectory.account import (
    account,
    call_ended,
    cell_ran,
    cell_started,
    ended,
    observed,
    replied,
    started,
    write,
)

COMMAND = EntryPoint("replay", "repl_env.cli.replay:replay", GROUP)


def run(*arguments):
    environ = {"COLUMNS": "120", "NO_COLOR": "1"}
    result = CliRunner().invoke(build([COMMAND]), ["replay", *map(str, arguments)], env=environ)
    return result.exit_code, result.output


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "run.jsonl", account())


def shown(events, **arguments):
    console = Console(width=120, file=io.StringIO(), highlight=False)
    print_tree(Trajectory.of(events).roots, console=console, **arguments)
    return console.file.getvalue()  # type: ignore[attr-defined]


# ── training samples ─────────────────────────────────────────────────────────────────────────────


def samples(*arguments):
    command = EntryPoint("samples", "repl_env.cli.replay:samples", GROUP)
    environ = {"COLUMNS": "120"}
    return CliRunner().invoke(build([command]), ["samples", *map(str, arguments)], env=environ)


def test_samples_of_files_and_folders_are_lines_of_json(path, tmp_path):
    folder = tmp_path / "more"
    (folder / "inner").mkdir(parents=True)
    write(folder / "inner" / "run.jsonl", account())
    done = samples(path, folder, "--masked", "-o", tmp_path / "out.jsonl")

    expected = Trajectory.load(path).samples()
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps([*expected, *expected]))
    assert f"{2 * len(expected)} samples" in done.stderr


def test_masked_samples_are_left_out_and_counted(tmp_path):
    events = [
        replace(each, error_kind="sandbox", ended="truncated")
        if (each.run, getattr(each, "ended", None)) == ("0.3", "terminated")
        else each
        for each in account()
    ]
    path = write(tmp_path / "run.jsonl", events)
    all_samples = Trajectory.load(path).samples()
    kept = [each for each in all_samples if not each["masked"]]
    assert len(kept) < len(all_samples)  # or this tests nothing

    done = samples(path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == json.loads(json.dumps(kept))
    left_out = len(all_samples) - len(kept)
    assert f"{len(kept)} samples; {left_out} masked ones left out (--masked)" in done.stderr


def test_samples_name_what_cannot_be_read(path, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no trajectory")
    for given, says in (
        (tmp_path / "none", "none: No such file"),
        (tmp_path / "empty", "there is no trajectory"),
        (tmp_path / "text", "no trajectory"),
    ):
        done = samples(given)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in " ".join(done.stderr.split())
    done = samples(path, "-o", tmp_path / "none" / "out.jsonl")
    assert done.exit_code == 2
    assert "--out" in done.stderr


# ── shown ────────────────────────────────────────────────────────────────────────────────────────


def test_the_task_of_a_run_is_shown(path):
    assert "task: name words, group_id g1, split test, difficulty 3" in run(path)[1]
    root = json.loads(run(path, "--json")[1])["runs"][0]

    assert (root["task"]["group_id"], root["ending"]) == ("g1", "terminated")
    assert root["task_reward"] == 0.75


def test_the_tree_is_shown_with_code_outputs_calls_children_and_totals(path):
    status, output = run(path)

    assert status == 0
    for text in (
        "run 0  m", "How many?", "context: str, 12", "turn 1", "10 → 4 tokens", ">>> code", "3",
        "call 0.1 llm", "a?", "answer: A", "call 0.3 rlm", "run 0.3", "turn 2",
        "answer: 3", "reward 1",
        "run 0: 2 turns, 5 calls, 1 run below, 40 tokens in, 16 out, $0.7500, 8.0 s",
    ):  # fmt: skip
        assert text in output
    assert output.index("call 0.1") < output.index("run 0.3") < output.index("turn 2")
    assert "You work in a REPL." not in output


def test_with_show_the_messages_and_replies_are_there_in_full(path):
    _, output = run(path, "--show")

    assert "system: You work in a REPL." in output
    assert "reply: ```repl" in output
    assert output.count("It printed: 3") == 1


def test_long_texts_are_headed_unless_shown_in_full():
    code = "\n".join(f"line_{n}" for n in range(50))
    events = [started(), replied(), cell_ran(code=code, observation=observed("z" * 5000))]

    assert "... line_5\n" in shown(events) and "line_6" not in shown(events)
    assert "44 more lines" in shown(events)
    assert "line_49" in shown(events, full=True)
    assert shown(events, full=True).count("z") == 5000


def test_one_run_can_be_chosen(path):
    status, output = run(path, "--run", "0.3")

    assert status == 0
    assert "run 0.3" in output and "How many?" not in output
    assert run(path, "--run", "0.9")[0] == 2
    assert "no run '0.9'" in run(path, "--run", "0.9")[1]


def test_json_has_the_whole_tree(path):
    status, output = run(path, "--json")
    (root,) = json.loads(output)["runs"]

    assert status == 0
    assert json.loads(output)["complete"] is True
    assert [turn["reply"] for turn in root["turns"]][1] == "```repl\nFINAL(3)\n```"
    assert root["turns"][1]["messages"] == [{"role": "user", "content": "It printed: 3"}]
    assert root["turns"][0]["cells"][0]["stdout"] == "3\n"
    assert root["calls"][2]["child"]["final_answer"] == "3"
    assert root["total"]["calls"] == 5


def test_truncated_parts_are_marked(tmp_path):
    events = [started(), replied(), cell_started()]
    status, output = run(write(tmp_path / "cut", events))

    assert status == 0
    assert "not complete" in output
    assert "its end is not known" in output
    assert "not known what came of it" in output


def test_of_a_successful_batch_some_calls_are_shown_and_all_failures():
    calls = [call_ended(f"0.{n}", text=f"answer {n}") for n in range(1, 41)]
    calls[20] = call_ended("0.21", text="Error: x: y", error="x: y")
    events = [started(), replied(), cell_ran(), *calls, ended()]

    assert shown(events).count("call 0.") == 4
    assert "call 0.21 " in shown(events)
    assert "36 more calls" in shown(events)
    assert shown(events, full=True).count("call 0.") == 40


def test_failures_are_shown():
    events = [
        started(),
        replied(text="no code"),
        call_ended("0.1", text="Error: timeout: late", error="timeout: late"),
        ended(answer=None, stop_reason="budget", error_kind="budget"),
    ]
    output = shown(events)

    assert "reply: no code" in output
    assert "Error: timeout: late" in output
    assert "no answer" in output and "stopped by budget (budget)" in output


def test_text_of_a_run_cannot_steer_the_terminal_and_is_not_markup():
    nasty = "\x1b[2J\x1b]0;title\x07[red]x[/red] \u202eabc \x9b31m\r\n\ud800"
    events = [
        started(question=nasty, model=nasty),
        replied(),
        cell_ran(code=nasty, observation=observed(nasty)),
        call_ended("0.1", prompt=nasty, text=nasty),
        ended(answer=None, stop_reason=nasty),
    ]
    for full in (False, True):
        output = shown(events, full=full)
        assert not any(sign in output for sign in "\x1b\x07\x9b\r\u202e")
        assert "\\x1b[2J" in output and "[red]x[/red]" in output


def test_line_ends_and_tabs_stay():
    assert visible("a\tb\r\nc\rd\x00") == "a\tb\nc\\rd\\x00"


# ── wrong files and arguments ────────────────────────────────────────────────────────────────────


def test_files_that_are_no_trajectories_are_usage_errors(tmp_path, path):
    other = tmp_path / "other"
    other.write_text("{}\n")
    broken = tmp_path / "broken"
    broken.write_bytes(path.read_bytes().replace(b'"turn": 2', b'"turn": "x"'))
    empty = write(tmp_path / "empty", [])

    for file, text in (
        (tmp_path / "missing", "No such file"),
        (tmp_path, "Is a directory"),
        (other, "no trajectory"),
        (broken, "line 17"),
        (empty, "no run"),
    ):
        status, output = run(file)
        assert status == 2
        assert text in " ".join(output.replace("│", " ").split())


@pytest.mark.parametrize(
    "arguments", [["--run", "0", "--execute"], ["--context", "x"], ["--execute"]]
)
def test_arguments_that_do_not_fit_are_usage_errors(path, arguments):
    """The last one: the context of this run is not in the file."""
    assert run(path, *arguments)[0] == 2


# ── run again ────────────────────────────────────────────────────────────────────────────────────


def test_the_first_difference_is_shown():
    console = Console(width=120, file=io.StringIO(), highlight=False)
    found = [
        RunDifference("0.3", 2, "result.stdout", "a\n\x1b[2J", "b\n"),
        RunDifference("0", 0, "final_answer", "a", None),
    ]
    print_differences(Trajectory.of(account()).root, found, console)
    output = console.file.getvalue()  # type: ignore[attr-defined]

    assert "result.stdout of cell 2 of run 0.3" in output
    assert "recorded: a\n\\x1b[2J" in output and "now: b" in output
    assert "and 1 more" in output


@pytest.fixture
def recorded(tmp_path):
    script = ["```repl\nn = len(context)\nprint(n)\n```", "```repl\nFINAL(n)\n```"]
    path = tmp_path / "recorded.jsonl"
    RLM(ScriptedModel(script), trajectory=path).run("How long?", "some text")
    (tmp_path / "context.txt").write_text("some text")
    return path


def test_a_replayed_run_has_the_same_result(recorded, tmp_path):
    status, output = run(recorded, "--execute", "--context", tmp_path / "context.txt")

    assert (status, "the same" in output) == (0, True)


def test_a_replayed_run_with_another_result_exits_1(recorded, tmp_path):
    recorded.write_text(recorded.read_text().replace('"stdout": "9\\n"', '"stdout": "8\\n"'))
    status, output = run(recorded, "--execute", "--json", "--context", tmp_path / "context.txt")

    assert status == 1
    assert json.loads(output)["differences"][0]["field"] == "result.stdout"


def test_another_context_is_a_usage_error(recorded, tmp_path):
    (tmp_path / "context.txt").write_text("other")

    assert run(recorded, "--execute", "--context", tmp_path / "context.txt")[0] == 2
    assert run(recorded, "--execute", "--context", tmp_path / "missing.txt")[0] == 2


def test_a_context_file_that_is_nested_too_deeply_is_a_usage_error(tmp_path):
    path = tmp_path / "recorded.jsonl"
    answer = "```repl\nFINAL(len(context))\n```"
    RLM(ScriptedModel([answer]), trajectory=path).run("How many?", [1, 2])
    (tmp_path / "context.json").write_text("[" * 200_000)
    status, output = run(path, "--execute", "--context", tmp_path / "context.json")

    assert status == 2
    assert "context.json" in "".join(output.split())
