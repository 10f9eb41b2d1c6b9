"""Every outcome has a kind, a text that says what happened, and a bounded rendering."""

import base64
from typing import Any, get_args

import pytest

from repl_env.episode.observations import clip, render
from repl_env.episode.observations import failure as failure_or_none
from repl_sandbox.types import (
    Change,
    Clock,
    ErrorInfo,
    Finished,
    Killed,
    KillReason,
    Raised,
    State,
    TimedOut,
    Usage,
)


def failure(outcome) -> Any:
    return failure_or_none(outcome)


def rendered(outcome, limit=8192):
    return render(outcome, failure(outcome), cell=3, limit=limit)


def test_a_finished_cell_shows_output_then_value():
    result = rendered(Finished(stdout="a", stderr="w", value="42"))
    assert (result.stdout, result.stderr, result.value) == ("a\n42\n", "w", "42")
    assert (result.success, result.exception, result.truncated) == (True, None, False)


def test_output_before_an_exception_is_kept_beside_the_error():
    error = ErrorInfo("ValueError", "bad", 'File "<cell 3>", line 1\nValueError: bad', 1)
    result = rendered(Raised(stdout="before\n", stderr="warned", error=error))
    assert result.stdout == "before\n"
    assert result.stderr == f"warned\n{error.traceback}"
    assert result.exception == f"ValueError: bad\n{error.traceback}"
    assert not result.success


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("SyntaxError", "syntax"),
        ("IndentationError", "syntax"),
        ("MemoryError", "memory"),
        ("_ArrayMemoryError", "memory"),
        ("ArrowMemoryError", "memory"),
        ("ZeroDivisionError", "exception"),
        ("MySyntaxError", "exception"),
    ],
)
def test_exceptions_are_sorted_into_kinds(type, kind):
    assert failure(Raised(error=ErrorInfo(type, "m", "", 1))).kind == kind


@pytest.mark.parametrize("clock", get_args(Clock))
def test_each_clock_has_a_kind(clock):
    assert failure(TimedOut(clock=clock)).kind == "timeout"


@pytest.mark.parametrize("reason", get_args(KillReason))
def test_each_reason_for_a_kill_has_a_kind_and_a_text(reason):
    failed = failure(Killed(reason=reason, state="restarted"))
    kinds = {"memory", "cpu", "processes", "output", "crash"}
    assert failed.kind in ({"sandbox"} if reason == "machine" else kinds)
    assert "variables are gone" in failed.text


def test_an_out_of_memory_failure_names_the_limit():
    killed = Killed(reason="memory", state="kept", limits=("memory",))
    failed = failure_or_none(killed, 3 << 29)
    assert failed and "than it may (the limit is 1,536 MiB). " in failed.text
    hit = Finished(limits=("memory", "processes"))
    told = render(hit, None, cell=1, limit=8192, memory=64 << 20).stderr.splitlines()
    assert told[0].endswith("were ended (the limit is 64 MiB).") and "MiB" not in told[1]


@pytest.mark.parametrize("state", get_args(State))
def test_each_state_after_a_timeout_is_reported(state):
    text = failure(TimedOut(state=state)).text
    expected = {"kept": "are kept", "rolled_back": "before this code", "restarted": "are gone"}
    assert expected[state] in text


def test_a_long_output_shows_head_and_tail_and_where_the_rest_is():
    result = rendered(Finished(stdout="a" * 100 + "z" * 100), limit=20)
    assert result.stdout.startswith("a" * 10 + "\n")
    assert result.stdout.endswith("\n" + "z" * 10)
    assert "total 200 chars" in result.stdout
    assert "_out[3]" in result.stdout
    assert result.truncated
    assert len(result.stdout) < 20 + 100


def test_output_at_the_limit_is_whole():
    assert clip("abc", 3, "_out[1]") == "abc"
    assert clip("abcdefgh", 1).startswith("a\n...")


def test_changes_become_a_snapshot_and_rows():
    changes = (
        Change("new", "x", "int", 28, "1"),
        Change("modified", "y", "list", 64, "[1]"),
        Change("deleted", "z", "str", 50, "'a'"),
    )
    result = rendered(Finished(changes=changes))
    assert result.locals_snapshot == {"x": "1", "y": "[1]"}
    assert [row["kind"] for row in result.changes] == ["new", "modified", "deleted"]
    assert result.changes[0] == {
        "kind": "new",
        "name": "x",
        "type": "int",
        "size": 28,
        "preview": "1",
    }


def test_figures_are_base64_and_time_excludes_waiting():
    result = rendered(Finished(figures=(b"\x89PNG",), usage=Usage(0.5, 9.0)))
    assert base64.b64decode(result.figures[0]) == b"\x89PNG"
    assert result.execution_time == 0.5


def test_lone_surrogates_are_replaced_in_observations():
    changes = (Change("new", "x", "t\ud800", 1, "p\ud800"),)
    error = ErrorInfo("E", "\udcff", "", None)
    outcome = Raised(stdout="\ud800", value="\ud801", changes=changes, error=error)
    rendered(outcome).model_dump_json().encode("utf-8")


@pytest.mark.parametrize(("limits", "kind"), [((), "exception"), (("machine",), "sandbox")])
def test_code_that_raised_after_a_death_between_cells_has_the_kind_of_the_death(limits, kind):
    error = ErrorInfo("NameError", "name 'x' is not defined", "Traceback: NameError", 1)
    failed = failure(Raised(error=error, state="restarted", limits=limits))
    assert failed.kind == kind
    assert "restarted before this code" in failed.text
    assert error.traceback in failed.text


def test_code_that_finished_after_a_death_between_cells_reports_it():
    result = rendered(Finished(stderr="warned", state="restarted"))
    assert result.success and result.exception is None
    assert result.stderr.startswith("warned\n")
    assert "restarted before this code" in result.stderr


@pytest.mark.parametrize("limit", ["memory", "processes", "machine"])
def test_a_limit_hit_beside_the_code_is_reported_and_is_no_failure(limit):
    result = rendered(Finished(stderr="warned", limits=(limit,)))
    assert result.success and result.exception is None
    assert result.stderr.startswith("warned\n")
    assert limit in result.stderr


def test_a_crash_names_its_signal():
    result = rendered(Killed(reason="signal", signal=11, state="rolled_back"))
    assert "crashed the interpreter (SIGSEGV)" in result.stderr


@pytest.mark.parametrize("message", ["bad", "two\nlines", "", "<e>"])
def test_the_message_of_an_exception_is_read_once(message):
    last = f"ValueError: {message}" if message else "ValueError"
    error = ErrorInfo("ValueError", message, f'File "<cell 3>", line 1\n{last}\n', 1)
    assert rendered(Raised(error=error)).stderr == error.traceback
    hidden = ErrorInfo("ValueError", message, 'File "<cell 3>", line 1\n', 1)
    assert rendered(Raised(error=hidden)).stderr == f"{last}\n{hidden.traceback}"


def test_the_limit_that_ended_the_code_is_reported_once():
    result = rendered(Killed(reason="memory", limits=("memory",), state="restarted"))
    assert result.stderr.count("MemoryError") == 1


def test_a_truncation_mark_names_the_rest_only_where_it_is_available(make):
    env = make(max_output_length=40)
    env.reset()
    printed = env.execute("import sys\nprint('o' * 100)\nsys.stderr.write('e' * 100)\n'v' * 100")
    assert "100 chars; the rest is in _out[1].stderr)" in printed.observation.result.stderr
    assert "chars; the rest is in _out[1])" in printed.observation.result.stdout
    assert env.execute("len(_out[1]), len(_out[1].stderr)").observation.result.value == "(101, 100)"

    shown = env.execute("'v' * 100").observation.result
    assert "(truncated, total 103 chars)" in shown.stdout
    assert "(truncated, total 102 chars)" in shown.value

    raised = env.execute("1 / 0").observation.result
    assert "chars)" in raised.stderr
    assert "_out" not in raised.stderr + raised.exception
