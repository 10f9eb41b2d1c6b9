"""Results, trajectories and samples name the task of a run, and its end."""

from __future__ import annotations

import json

import pytest

from repl_env.errors import ModelError
from repl_env.rlm import ScriptedModel, TaskNote, Trajectory, TrajectoryWriter
from repl_env.tasks import load, make_task
from tests.repl_env.rlm.trajectory.account import account

FACTS = {"id": 7, "split": "test", "difficulty": 3, "metric": "accuracy", "group": None}
PAIRS = make_task("pairs", 1_000, 1)
NOTE = TaskNote(name="7", group_id="g1", split="test", difficulty="3")
OF_ROOT = ("task", "group_id", "split", "difficulty", "ended", "task_reward")


def code(text):
    return f"```repl\n{text}\n```"


def test_the_facts_of_a_task_are_in_the_result_the_file_and_the_samples(rlm, tmp_path):
    path = tmp_path / "run.jsonl"
    model = ScriptedModel([code("1 / 0"), code("FINAL(2)")])
    result = rlm(model, trajectory=path).run(
        "1 + 1?", expected_answer="2", task=FACTS, group_id="g1"
    )
    loaded = Trajectory.load(path)

    assert (result.task, result.group_id) == (NOTE, "g1")
    assert loaded.root.task == NOTE
    for trajectory in (loaded, result.trajectory):
        for sample in trajectory.samples():
            told = tuple(sample[name] for name in OF_ROOT)
            assert told == ("7", "g1", "test", "3", "terminated", 1.0)
    assert "g1" not in str(model.requests)


@pytest.mark.parametrize(
    ("task", "note"),
    [
        (None, None),
        ("one", TaskNote(name="one")),
        ({}, TaskNote()),
        ({"name": "n", "id": "i", "group_id": 4}, TaskNote(name="n", group_id="4")),
        (
            load("blotto"),
            TaskNote(name="blotto", split="train", difficulty="easy", group="games"),
        ),
        (PAIRS, TaskNote(name=PAIRS.id, group="pairs")),
    ],
)
def test_a_task_is_a_name_facts_or_a_task(rlm, task, note):
    assert rlm(ScriptedModel([code("FINAL(1)")])).run("?", task=task).task == note


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"task": 3}, "task must be a name"),
        ({"task": {"split": ["train"]}}, "task: split must be a text"),
        ({"task": {"difficulty": True}}, "task: difficulty must be a text"),
        ({"group_id": object()}, "group_id must be a text"),
    ],
)
def test_invalid_facts_are_named_before_any_model_call(rlm, given, told):
    model = ScriptedModel([code("FINAL(1)")])

    with pytest.raises(TypeError, match=told):
        rlm(model).run("?", **given)
    assert not model.requests


PUT_DOWN = code("answer['content'] = '2'")
ENDS = {
    "an answer": ([code("FINAL(2)")], {}, "terminated", 1.0),
    "a wrong answer": ([code("FINAL(3)")], {}, "terminated", 0.0),
    "the answer that is asked for at the end": ([PUT_DOWN, "2"], {}, "terminated", 1.0),
    "no answer": ([PUT_DOWN, ""], {}, "truncated", 1.0),
    "a time-out": ([code("import time\ntime.sleep(60)")], {"timeout_s": 0.5}, "truncated", 0.0),
}


@pytest.mark.parametrize(("replies", "given", "ended", "reward"), ENDS.values(), ids=ENDS)
def test_answers_and_limits_are_distinct_ends(rlm, replies, given, ended, reward):
    made = rlm(ScriptedModel(replies), max_iterations=1)
    result = made.run("1 + 1?", expected_answer="2", **given)

    assert (result.ended, result.task_reward) == (ended, reward)
    assert result.trajectory.root.ended.ended == ended


def test_penalties_are_no_part_of_the_tasks_reward(rlm):
    model = ScriptedModel([code("x = 1"), ""])
    result = rlm(model, max_iterations=1).run("1 + 1?", expected_answer="2")

    assert (result.ended, result.reward, result.task_reward) == ("truncated", -0.1, 0.0)


def test_a_run_without_a_reply_was_cut_off_and_has_no_reward(rlm):
    def broken(messages):
        raise ConnectionError("no route")

    with pytest.raises(ModelError) as caught:
        rlm(broken).run("?", expected_answer="x", task="t")
    result = caught.value.result  # type: ignore[attr-defined]

    assert (result.ended, result.task_reward, result.task) == (
        "truncated",
        None,
        TaskNote(name="t"),
    )


def test_each_question_of_a_conversation_has_its_own_task(rlm):
    model = ScriptedModel([code("FINAL(1)"), code("FINAL(2)"), code("FINAL(3)")])
    with rlm(model).conversation() as talk:
        groups = [
            talk.ask_plain("?", task="a", group_id="g1").group_id,
            talk.ask_plain("?", group_id="g2").group_id,
            talk.ask_plain("?").group_id,
        ]

    assert groups == ["g1", "g2", None]


def test_files_of_earlier_releases_are_read(tmp_path):
    """Written without the fields of tasks and ends."""
    path = tmp_path / "run.jsonl"
    with TrajectoryWriter(path) as writer:
        for event in account():
            writer(event)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        for name in ("task", "ended", "task_reward"):
            line.pop(name, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trajectory = Trajectory.load(path)

    assert trajectory.complete
    assert trajectory.root.task is None
    for sample in (*trajectory.samples(), *(s.to_dict() for s in trajectory.samples(object()))):
        assert [sample[name] for name in OF_ROOT] == [None] * 6


def test_samples_of_a_tokenizer_have_the_facts_too():
    for sample in Trajectory.of(account()).samples(object()):
        told = tuple(sample.to_dict()[name] for name in OF_ROOT)
        assert told == ("words", "g1", "test", "3", "terminated", 0.75)


def test_a_run_that_was_cut_is_truncated():
    (sample, *_) = Trajectory.of(account()[:-1]).samples()

    assert (sample["ended"], sample["masked"]) == ("truncated", True)
