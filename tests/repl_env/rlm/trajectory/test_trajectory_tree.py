"""The tree of runs in a trajectory, its messages and its training samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from repl_env.rlm import Trajectory
from repl_env.rlm.model_call import RunEnded
from repl_env.rlm.samples import TrainingSample
from tests.repl_env.rlm.trajectory.account import (
    DEEP,
    FIRST,
    QUESTION,
    REPORT,
    SECOND,
    SYSTEM,
    account,
    call_ended,
    call_started,
    cell_ran,
    cell_started,
    ended,
    replied,
    started,
)


def test_events_become_runs_with_turns_cells_calls_and_children():
    root = Trajectory.of(account()).root

    assert (root.id, root.parent, root.depth, root.question) == ("0", None, 0, "How many?")
    assert [(turn.number, turn.completion.text) for turn in root.turns] == [(1, FIRST), (2, SECOND)]
    assert [cell.number for cell in root.cells] == [1, 2]
    assert root.turns[0].cells[0].observation.result.stdout == "3\n"
    assert [(call.id, call.number, call.text) for call in root.calls] == [
        ("0.1", 1, "A"), ("0.2", 2, "B"), ("0.3", 3, "3"),
    ]  # fmt: skip
    (child,) = root.children
    assert root.calls[2].child is child
    assert (child.id, child.parent, child.depth, child.final_answer) == ("0.3", "0", 1, "3")
    assert root.total.calls == 5


def test_events_of_parallel_runs_may_interleave():
    events = list(account())
    one = [event for event in events if event.run == "0.3"]
    other = [replace(event, run="0.4") for event in one]
    start = events.index(one[0])
    mixed = [event for pair in zip(one, other, strict=True) for event in pair]
    rest = [event for event in events if event.run != "0.3"]
    calls = [call_started("0.4", "rlm", "deep?")]
    root = Trajectory.of([*rest[:start], *calls, *mixed, *rest[start:]]).root

    assert [child.id for child in root.children] == ["0.3", "0.4"]
    assert [len(child.turns) for child in root.children] == [1, 1]


def test_a_call_without_an_end():
    (call,) = Trajectory.of([started(), call_started("0.1")]).root.calls

    assert (call.text, call.error, call.ended, call.prompt) == (None, None, None, "a?")


def test_an_episode_with_calls_alone_is_a_run():
    trajectory = Trajectory.of([call_started("0.1", "rlm"), started("0.1"), ended("0.1")])

    assert (trajectory.root.id, trajectory.root.began) == ("0", None)
    assert trajectory.run("0.1").ended is not None


def test_the_runs_of_a_conversation_are_roots_side_by_side():
    trajectory = Trajectory.of([*account(), started("1"), ended("1", "4")])

    assert [run.final_answer for run in trajectory.roots] == ["3", "4"]


def test_two_thousand_levels_of_runs_are_no_problem():
    path = ".".join(["0", *["1"] * 2_000])

    assert sum(1 for _ in Trajectory.of([started(path)]).runs()) == 2_001


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([started(), started()], "event 2: run '0': it has begun before"),
        ([started(), ended(), ended()], "event 3: run '0': it has ended before"),
        ([started(), replied(kept=1)], "kept 1 of 0 messages"),
        ([started(), replied(), replied(kept=3)], "turn 1 after turn 1"),
        ([started(), replied(), cell_started(), cell_started()], "cell 1 is there twice"),
        ([started(), replied(), cell_ran(), cell_ran()], "cell 1 is there twice"),
        ([started(), call_started("0.1"), call_started("0.1")], "call 0.1 is there twice"),
        ([started(), call_ended("0.1"), call_ended("0.1")], "call 0.1 is there twice"),
    ],
)
def test_events_that_cannot_be_of_one_tree_are_refused(events, text):
    with pytest.raises(ValueError, match=text):
        Trajectory.of(events)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_the_conversation_at_its_end():
    trajectory = Trajectory.of(account())
    first, second = ({"role": "assistant", "content": text} for text in (FIRST, SECOND))

    assert trajectory.messages() == [SYSTEM, QUESTION, first, REPORT, second]
    assert trajectory.messages("0.3")[:2] == [SYSTEM, DEEP]
    assert trajectory.messages_at("0", 1) == [SYSTEM, QUESTION]
    assert trajectory.messages_at("0", 2) == [SYSTEM, QUESTION, first, REPORT]


def test_a_turn_that_follows_a_shortened_conversation_has_the_shortened_one():
    """Compaction: of five messages only the first is kept, and a summary stands for the others."""
    summary = {"role": "user", "content": "(2 turns are not shown)"}
    trajectory = Trajectory.of(
        [
            started(),
            replied(),
            replied(turn=2, kept=3, added=[REPORT]),
            replied(turn=3, kept=1, added=[summary]),
            replied(turn=4, kept=3, added=[REPORT]),
        ]
    )
    reply = {"role": "assistant", "content": FIRST}

    assert trajectory.messages_at("0", 2) == [SYSTEM, QUESTION, reply, REPORT]
    assert trajectory.messages_at("0", 3) == [SYSTEM, summary]
    assert trajectory.messages_at("0", 4) == [SYSTEM, summary, reply, REPORT]
    assert trajectory.messages() == [SYSTEM, summary, reply, REPORT, reply]


def test_runs_and_turns_that_are_not_there_are_key_errors():
    trajectory = Trajectory.of(account())

    with pytest.raises(KeyError, match=r"no run '0\.9'"):
        trajectory.messages("0.9")
    with pytest.raises(KeyError, match="no turn 9"):
        trajectory.messages_at("0", 9)
    assert Trajectory.of([started()]).messages() == []


# ── training samples ─────────────────────────────────────────────────────────────────────────────


def test_each_turn_of_each_run_is_a_sample():
    samples = Trajectory.of(account()).samples()

    assert [(each["run"], each["turn"], each["parent"], each["depth"]) for each in samples] == [
        ("0", 1, None, 0), ("0", 2, None, 0), ("0.3", 1, "0", 1),
    ]  # fmt: skip
    assert samples[0]["prompt"] == [SYSTEM, QUESTION]
    assert samples[0]["completion"] == [{"role": "assistant", "content": FIRST}]
    assert [each["reward"] for each in samples] == [1.0, 1.0, 1.0]
    assert [each["own_reward"] for each in samples] == [1.0, 1.0, None]
    assert not any(each["masked"] for each in samples)
    assert json.loads(json.dumps(samples)) == samples


def masked(events):
    return [each["masked"] for each in Trajectory.of(events).samples()]


@pytest.mark.parametrize("kind", ["llm", "sandbox", "cancelled"])
def test_a_root_with_an_infrastructure_error_masks_the_whole_tree(kind):
    assert masked([*account()[:-1], ended(error_kind=kind)]) == [True, True, True]


@pytest.mark.parametrize("kind", ["timeout", "budget", "exception", None])
def test_failures_of_the_policy_mask_nothing(kind):
    assert masked([*account()[:-1], ended(error_kind=kind)]) == [False, False, False]


def test_a_child_with_an_infrastructure_error_is_masked_alone():
    events = [
        replace(event, error_kind="sandbox")
        if isinstance(event, RunEnded) and event.run == "0.3"
        else event
        for event in account()
    ]

    assert masked(events) == [False, False, True]


def test_a_run_that_was_cut_is_masked():
    assert masked(account()[:-1]) == [True, True, True]


def test_samples_with_a_tokenizer_are_those_of_the_recorded_tokens():
    one, two, three = Trajectory.of(account()).samples(object())

    assert isinstance(one, TrainingSample)
    assert (one.input_ids, one.loss_mask, one.logprobs) == ((1, 2, 3), (0, 0, 1), (-0.5,))
    assert [(each.run, each.turn, each.parent) for each in (one, two, three)] == [
        ("0", 1, None), ("0", 2, None), ("0.3", 1, "0"),
    ]  # fmt: skip
    assert [each.reward for each in (one, two, three)] == [1.0] * 3
