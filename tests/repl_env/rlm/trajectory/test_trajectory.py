"""Trajectory files: writing, reading, and files that are cut or broken."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl_env.errors import REPLError
from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.rlm import Trajectory, TrajectoryWriter
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
    CallEnded,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.trajectory_events import KINDS, READERS
from tests.repl_env.rlm.trajectory.account import (
    SYSTEM,
    account,
    call_ended,
    call_started,
    cell_ran,
    ended,
    observed,
    replied,
    started,
    write,
)

ROOT = Path(__file__).parents[4]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# ── there and back ───────────────────────────────────────────────────────────────────────────────


def test_events_are_read_as_they_were_written(path):
    trajectory = Trajectory.load(write(path, account()))

    assert trajectory.events == account()
    assert trajectory.complete
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Trajectory.load(path).events == account()


def test_each_line_has_kind_and_number_and_runs_name_their_cause(path):
    header, *events = lines(write(path, account()))

    assert (header["format"], header["version"]) == ("repl-env trajectory", 1)
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert [event["event"] for event in events[:4]] == [
        "run_started", "model_replied", "cell_started", "call_started",
    ]  # fmt: skip
    child = next(event for event in events if event["run"] == "0.3")
    assert (child["event"], child["parent"], child["call"]) == ("run_started", "0", "0.3")
    assert (events[0]["parent"], events[0]["call"]) == (None, None)


def test_each_field_of_each_kind_has_a_reader():
    for name, kind in KINDS.items():
        assert list(READERS[name].readers) == [field.name for field in fields(kind)]


texts = st.text(st.characters(), max_size=8)  # lone surrogates too
words = st.none() | texts
numbers = st.floats(allow_nan=False) | st.integers(0, 10**20)
finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
usages = st.builds(ModelUsage, st.none() | counts, st.none() | counts, st.none() | numbers)
traces = st.builds(
    TokenTrace,
    st.lists(counts, max_size=3).map(tuple),
    st.lists(counts, max_size=3).map(tuple),
    st.lists(st.floats(max_value=0, allow_nan=False), max_size=3).map(tuple),
)
completions = st.builds(Completion, texts, usages, words, words, st.none() | traces)
messages = st.fixed_dictionaries({"role": texts, "content": texts}, optional={"name": texts})
spent = st.builds(
    Spent, calls=counts, usd=finite.map(abs), input_tokens=counts, cpu_seconds=finite.map(abs)
)
notes = st.lists(st.builds(ContextNote, texts, texts, counts), max_size=2).map(tuple)
runs = st.builds(
    RunStarted,
    run=st.just("0"), time=finite, depth=counts, question=texts, model=words,
    max_iterations=counts, contexts=notes,
    task=st.none() | st.builds(TaskNote, name=words, group_id=words, split=words),
)  # fmt: skip
turns = st.builds(
    ModelReplied,
    run=st.just("0"), time=finite, turn=counts, kept=st.just(0),
    added=st.lists(messages, max_size=3).map(tuple), completion=completions, seconds=finite,
    last=st.booleans(),
)  # fmt: skip
calls = st.builds(
    CallEnded,
    run=st.just("0"), time=finite, call=st.just("0.1"), kind=st.sampled_from(["llm", "rlm"]),
    cell=counts, model=words, prompt=texts, text=texts, error=words, truncated=st.booleans(),
    usage=usages, seconds=finite, child=st.booleans(),
)  # fmt: skip
ends = st.builds(
    RunEnded,
    run=st.just("0"), time=finite, final_answer=words, answer_value=values, stop_reason=texts,
    error_kind=words, reward=st.none() | finite, iterations=counts, own=spent, total=spent,
    seconds=finite, ended=st.sampled_from([None, "terminated", "truncated"]),
    task_reward=st.none() | finite,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs, turns, calls, ends)
def test_any_events_are_read_as_they_were_written(tmp_path_factory, run, turn, call, end):
    path = tmp_path_factory.mktemp("any") / "run.jsonl"

    assert Trajectory.load(write(path, [run, turn, call, end])).events == (run, turn, call, end)


def test_nan_and_infinity_are_read_again(path):
    trace = TokenTrace((1,), (2, 3), (-math.inf, 0.0))
    event = replied(completion=Completion("x", tokens=trace))

    assert Trajectory.load(write(path, [started(), event])).events[1] == event
    assert "Infinity" not in path.read_text()


def test_values_without_a_json_form_do_not_end_a_run(path):
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    observation = observed(odd={1, 2}, worse=object(), nan=math.nan, deep=deep)
    loaded = Trajectory.load(
        write(path, [started(), replied(), cell_ran(observation=observation), ended()])
    )

    assert loaded.events[2].observation.metadata["odd"] == [1, 2]
    assert loaded.complete


def test_figures_are_kept_or_left_out(path, tmp_path):
    events = [started(), replied(), cell_ran(observation=observed(figures=["iVBORw0="]))]
    kept = Trajectory.load(write(path, events))
    left_out = Trajectory.load(write(tmp_path / "small.jsonl", events, figures=False))

    assert kept.events[2].observation.result.figures == ["iVBORw0="]
    assert left_out.events[2].observation.result.figures == []
    assert events[2].observation.result.figures == ["iVBORw0="]


# ── the writer ───────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_there_is_not_overwritten_unless_asked(path):
    write(path, account())
    with pytest.raises(FileExistsError, match=r"run\.jsonl"):
        TrajectoryWriter(path)
    assert Trajectory.load(path).events == account()

    assert Trajectory.load(write(path, [started()], overwrite=True)).events == (started(),)


def test_a_closed_writer_says_so_and_may_be_closed_twice(path):
    writer = TrajectoryWriter(path)
    writer.close()
    writer.close()

    with pytest.raises(REPLError, match="closed"):
        writer(started())


def test_a_file_holds_one_tree(path):
    with TrajectoryWriter(path) as writer:
        writer(started())
        with pytest.raises(ValueError, match="run '0' already"):
            writer(started())


def test_threads_may_write_at_once(path):
    def tell(first):
        for number in range(first, first + 200):
            writer(call_started(f"0.{number}"))
            writer(call_ended(f"0.{number}", text="x" * 300))

    with TrajectoryWriter(path) as writer:
        writer(started())
        threads = [threading.Thread(target=tell, args=(1 + 200 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(Trajectory.load(path).root.calls) == 1600
    assert [line["id"] for line in lines(path)[1:]] == list(range(1, 3202))


def test_each_event_is_in_the_file_when_the_writer_returns(path):
    with TrajectoryWriter(path, sync=True) as writer:
        for number, event in enumerate(account(), 1):
            writer(event)
            assert len(Trajectory.load(path).events) == number


WRITE_FOR_LONG = """
import signal, sys
from repl_env.rlm import TrajectoryWriter
from tests.repl_env.rlm.trajectory.account import call_ended, call_started, started
writer = TrajectoryWriter(sys.argv[1])
writer(started())
for number in range(1, 5_000):
    writer(call_started(f"0.{number}"))
    writer(call_ended(f"0.{number}", text="x" * 3000))
    if number == 50:
        print("enough", flush=True)
signal.pause()
"""


def test_a_killed_writer_leaves_all_but_the_event_it_was_at(path):
    command = [sys.executable, "-c", WRITE_FOR_LONG, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"enough\n"
        process.send_signal(signal.SIGKILL)
    trajectory = Trajectory.load(path)

    assert not trajectory.complete
    assert len(trajectory.root.calls) >= 50
    assert [call.number for call in trajectory.root.calls] == list(
        range(1, len(trajectory.root.calls) + 1)
    )


FULL_DISK = """
import resource, signal, sys
from repl_env.rlm import TrajectoryWriter
from tests.repl_env.rlm.trajectory.account import call_ended, started
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
writer = TrajectoryWriter(sys.argv[1])
writer(started())
for event in (call_ended("0.1", text="x" * 5000), call_ended("0.2", text="short")):
    try:
        writer(event)
    except OSError as error:
        print(type(error).__name__, sys.argv[1] in str(error))
"""


def test_a_failed_write_is_an_error_and_no_later_line_hides_the_gap(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "OSError True\n" * 2
    assert Trajectory.load(path).events == (started(),)


SECRET = 'sk-"geheim"-ключ-123'


def test_registered_secrets_are_not_written(path):
    error = f"authentication: no such key {SECRET}"
    events = [
        started(question=SECRET),
        replied(added=[SYSTEM, {"role": "user", "content": [{"type": "text", "text": SECRET}]}]),
        cell_ran(observation=observed(SECRET, deep={"in": [SECRET * 2]})),
        call_ended("0.1", text=f"Error: {error}", error=error),
        ended(answer=None, answer_value={"k": SECRET + "\ud800"}),
    ]
    trajectory = Trajectory.load(write(path, events, secrets=[SECRET]))

    assert "geheim" not in path.read_text()
    assert trajectory.root.question == "[secret]"
    assert trajectory.root.calls[0].error == "authentication: no such key [secret]"
    assert trajectory.complete


def test_a_secret_of_digits_does_not_break_the_numbers_of_a_line(path):
    events = [started(time=1234567890.5), ended(answer="1234567890", answer_value=None)]
    trajectory = Trajectory.load(write(path, events, secrets=["1234567890"]))

    assert trajectory.root.began == 1234567890.5
    assert trajectory.root.final_answer == "[secret]"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"secrets": "sk-one-secret"}, TypeError, "secrets must be several"),
        ({"secrets": [b"sk-one-secret"]}, TypeError, "secrets must be texts"),
        ({"secrets": ["short"]}, ValueError, "shorter than 8"),
        ({"settings": {"a": object()}}, TypeError, "settings must be JSON"),
        ({"contexts": {"context": 3}}, TypeError, "context must be str"),
    ],
)
def test_wrong_arguments_are_named_and_make_no_file(path, arguments, error, text):
    with pytest.raises(error, match=text):
        TrajectoryWriter(path, **arguments)
    assert not path.exists()


# ── contexts and settings ────────────────────────────────────────────────────────────────────────


def test_short_contexts_are_stored_and_long_ones_by_their_checksum(path, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("größe\n" * 20_000)
    contexts = {"text": "ключ", "data": b"\xff\0", "table": {"a": [1, None]}, "book": book}
    trajectory = Trajectory.load(write(path, account(), contexts=contexts))

    assert trajectory.contexts == {"text": "ключ", "data": b"\xff\0", "table": {"a": [1, None]}}
    assert set(trajectory.digests) == set(contexts)
    assert path.stat().st_size < 70_000


def test_all_contexts_together_are_bounded(path):
    contexts = {f"c{number}": "x" * 20_000 for number in range(10)}
    trajectory = Trajectory.load(write(path, account(), contexts=contexts))

    assert list(trajectory.contexts) == ["c0", "c1", "c2"]


def test_settings_are_read_as_written(path):
    trajectory = Trajectory.load(write(path, account(), settings={"max_depth": 3}))

    assert trajectory.settings == {"max_depth": 3}
    assert Trajectory.of(account()).settings == {}


# ── reading what is broken ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_half_a_last_line_is_left_out(path, kept):
    whole, _, last = write(path, account()).read_bytes()[:-1].rpartition(b"\n")
    path.write_bytes(whole + b"\n" + last[:kept])
    trajectory = Trajectory.load(path)

    assert trajectory.events == account()[:-1]
    assert not trajectory.complete


def test_a_whole_last_line_without_its_end_counts(path):
    path.write_bytes(write(path, account()).read_bytes()[:-1])

    assert Trajectory.load(path).events == account()
    assert Trajectory.load(path).complete


def test_a_run_without_its_end_is_not_complete(path):
    assert not Trajectory.load(write(path, account()[:-1])).complete


def test_a_file_of_a_header_alone_has_no_run(path):
    trajectory = Trajectory.load(write(path, []))

    assert not trajectory.complete
    with pytest.raises(ValueError, match="no run"):
        trajectory.root


def line(**changes):
    """A broken line: that of a cell with `changes`; ... takes a field away."""
    fields = {
        "event": "cell_started", "id": 3, "run": "0", "time": 3.0, "turn": 1, "cell": 1, "code": "",
        **changes,
    }  # fmt: skip
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (b"{", "line 4: not JSON"),
        (b"", "line 4: not JSON"),
        (b"\xff", "line 4: not UTF-8"),
        (b"[1]", "line 4: a JSON object was expected, not list"),
        (b'{"event": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 4: .*nested too deeply"),
        (line(event=...), "line 4: event: missing"),
        (line(code=...), "line 4: code: missing"),
        (line(code=3), "line 4: code: text was expected, not int"),
        (line(turn=-1), "line 4: turn: a whole number from 0"),
        (line(turn=True), "line 4: turn: a whole number from 0"),
        (line(time="soon"), "line 4: time: a number was expected"),
        (line(turn=7), "line 4: run '0': cell 1 is of turn 7"),
        (line(run="x"), "line 4: run 'x': a run is named by numbers"),
        (line(event="call_started", call="1.2", kind="llm", model=None, prompt=""), "another run"),
        (line(event="call_started", call="0.2", kind="?", model=None, prompt=""), "kind: one of"),
        (line(event="cell_ran", seconds=1, observation={}), "observation: result: Field required"),
        (line(event="cell_ran", seconds=1, observation=3), "line 4: observation: "),
    ],
)
def test_a_broken_line_is_an_error_with_its_number(path, broken, text):
    before = write(path, account()[:2]).read_bytes()
    path.write_bytes(before + broken + b"\n" + line(cell=9) + b"\n")

    with pytest.raises(ValueError, match=text) as caught:
        Trajectory.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "line 1: this is no trajectory"),
        (b"{}\n", "line 1: this is no trajectory: its format is None"),
        (b"hello\n", "line 1: this is no trajectory: not JSON"),
        (b"\x7fELF\x02\x01\n", "line 1: this is no trajectory"),
        (b'{"format": "repl-env trajectory", "version": 2}\n', "version 2; this release reads"),
        (b'{"format": "repl-env trajectory"}\n', "version None"),
        (b'{"format": "repl-env trajectory", "version": true}\n', "version True"),
        (b'{"format": "repl-env trajectory", "version": 1, "contexts": 3}\n', "contexts: objects"),
    ],
)
def test_a_trajectory_of_another_format_or_version_is_refused(path, content, text):
    path.write_bytes(content)

    with pytest.raises(ValueError, match=text):
        Trajectory.load(path)


def test_additions_of_a_later_release_are_skipped(path):
    header, *events = lines(write(path, account()))
    for event in events:
        event["added_later"] = {"x": 1}
    ran = next(event for event in events if event["event"] == "cell_ran")
    ran["observation"]["added_later"] = ran["observation"]["result"]["added_later"] = 1
    events.insert(3, {"event": "weather", "run": "0", "time": 1, "sun": True})
    path.write_text("\n".join(json.dumps(each) for each in [header, *events]))

    assert Trajectory.load(path).events == account()


def test_a_field_with_a_default_may_be_missing(path):
    header, *events = lines(write(path, account()))
    for event in events:
        event.pop("last", None)
        event.pop("child", None)
    path.write_text("\n".join(json.dumps(each) for each in [header, *events]) + "\n")
    turns = Trajectory.load(path).root.turns

    assert [turn.last for turn in turns] == [False, False]
