"""Training that one can watch: facts for reward functions, shares in logs, recorded rollouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from trl import GRPOTrainer

from repl_env.integrations.trl import (
    REPLGRPOTrainer,
    REPLToolEnv,
    episode_reward,
    masked_rewards,
    rollout_func,
    use_fences,
)
from repl_env.rlm import Trajectory
from tests.training.trainer_internals import environments_of
from tests.training.trl.scripted import (
    fenced,
    kill,
    logged_rewards,
    metrics_of,
    rewrite,
    rollouts_of,
    trainer_of,
)

LOOK, RIGHT = fenced("print(context)"), fenced("FINAL(len(context.split()))")
WRONG, FAILS = fenced("FINAL(0)"), fenced("1 / 0")
HIDDEN = "a-hidden-answer-4711"
ROWS = [
    {
        "prompt": [{"role": "user", "content": "How many words?", "task": str(number)}],
        "context": "a " * number,
        "expected_answer": str(number),
        "task_id": f"words-{number}",
    }
    for number in (1, 2)
]
REPLIES = [[LOOK, RIGHT], [FAILS, WRONG], [RIGHT], [LOOK, FAILS, FAILS, WRONG]]
LAST = 3  # the number of a rollout, whose session is lost where a test says so


@pytest.fixture
def train(model, tokenizer, tmp_path):
    """A function that makes a trainer of one update by `way`, with a reward function `rewards`."""
    opened: list[Any] = []

    def make(
        way, rewards, kind=GRPOTrainer, *, lost=False, rows=ROWS, replies=REPLIES, settings=None,
        **arguments,
    ):  # fmt: skip
        holder: list[Any] = []
        chosen: dict[str, Any]
        if way == "factory":
            chosen = {"environment_factory": partial(REPLToolEnv, **arguments)}
            use_fences(tokenizer)
        else:
            rollouts = rollout_func(rows, **arguments)
            chosen = {"rollout_func": rollouts}
            opened.append(rollouts)

        def env_of():
            if way == "factory":
                return holder[0].environments[LAST].env
            return environments_of(rollouts)[LAST]

        def dies():
            kill(env_of())
            return LOOK

        replies = [*replies[:LAST], [LOOK, dies]] if lost else replies
        trainer = trainer_of(
            model, tokenizer, rows, tmp_path / "model", kind=kind, replies=replies,
            reward_funcs=[rewards, *([] if way == "factory" else [episode_reward])],
            settings=settings or {}, **chosen,
        )  # fmt: skip
        holder.append(trainer)
        return trainer

    yield make
    for rollouts in opened:
        rollouts.close()


class Facts:
    """A reward function that keeps its columns."""

    __name__ = "facts"

    def __call__(self, completions, **columns):
        self.columns = {
            name: column for name, column in columns.items() if name.startswith("episode_")
        }
        return [float(steps) for steps in columns["episode_steps"]]


@pytest.mark.parametrize("way", ["factory", "rollouts"])
@pytest.mark.parametrize("kind", [GRPOTrainer, REPLGRPOTrainer])
def test_a_reward_function_gets_the_facts_by_the_same_names(train, way, kind):
    facts = Facts()
    # The trainer of ours passes them to functions that are not wrapped too.
    rewards = facts if kind is REPLGRPOTrainer else masked_rewards(facts)
    trainer = train(way, rewards, kind, lost=True)
    rollouts_of(trainer)
    assert facts.columns == {
        "episode_answer": ["1", "0", "2", None],
        "episode_answer_value": [1, 0, 2, None],
        "episode_steps": [2, 2, 1, 2],
        "episode_error_kinds": [[None, None], ["exception", None], [None], [None, "sandbox"]],
        "episode_components": [
            {"process": 0.0, "outcome": 1.0},
            {"process": -0.05, "outcome": 0.0},
            {"outcome": 1.0},
            {"process": 0.0},
        ],
        "episode_reward": [1.0, pytest.approx(-0.05), 1.0, None],
        "episode_task_reward": [1.0, 0.0, 1.0, None],
        "episode_masked": [False, False, False, True],
        "episode_stop_reason": ["answer", "answer", "answer", "aborted"],
    }
    logged = [float(reward) for reward in logged_rewards(trainer, "facts")]
    assert logged[:3] == [2.0, 2.0, 1.0]
    assert (logged[3] != logged[3]) == (kind is GRPOTrainer)  # wrapped: None where it is masked


@pytest.mark.parametrize("way", ["factory", "rollouts"])
@pytest.mark.parametrize("kind", [GRPOTrainer, REPLGRPOTrainer])
def test_the_shares_of_failures_are_in_the_logs(train, way, kind):
    trainer = train(way, masked_rewards(Facts()), kind, lost=True)
    trainer.train()
    (logs, *_) = trainer.state.log_history
    shares = {name: value for name, value in logs.items() if "_share" in name}
    assert shares == {
        "masked_share": 0.25,
        "answered_share": 0.75,
        "failed_share": 0.5,
        "failed_share/exception": 0.25,
        "failed_share/sandbox": 0.25,
    }


def test_a_new_kind_of_failure_has_shares_of_the_earlier_batches(train):
    trainer = train("rollouts", masked_rewards(Facts()))
    rollouts_of(trainer)
    rewrite(trainer, [[fenced("import os", "os._exit(1)"), RIGHT], *REPLIES[1:]])
    rollouts_of(trainer)
    metrics = metrics_of(trainer)
    assert metrics["failed_share/exception"] == [0.5, 0.5]
    assert metrics["failed_share/crash"] == [0.0, 0.25]


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_rollouts_are_recorded_in_groups(train, way, tmp_path):
    hidden = [ROWS[0], {**ROWS[1], "expected_answer": HIDDEN}]
    record = tmp_path / "record"
    trainer = train(way, masked_rewards(Facts()), rows=hidden, record=record)
    rollouts_of(trainer)
    files = sorted(record.rglob("*.jsonl"))
    trajectories = [Trajectory.load(file) for file in files]
    runs = [trajectory.root for trajectory in trajectories]
    assert [run.task.name for run in runs] == ["words-1", "words-1", "words-2", "words-2"]
    assert len({run.task.group_id for run in runs}) == 2
    assert [run.reward for run in runs] == pytest.approx([1.0, -0.05, 0.0, -0.1])
    assert [len(list(run.cells)) for run in runs] == [2, 2, 1, 4]
    assert all(trajectory.complete for trajectory in trajectories)
    assert runs[0].turns[0].completion.text == LOOK
    question, reply, told = runs[0].turns[1].messages
    assert question == {"role": "user", "content": "How many words?"}
    assert reply == {"role": "assistant", "content": LOOK}
    assert told["role"] == "tool" and told["content"].strip() == "a"
    assert not any(HIDDEN.encode() in file.read_bytes() for file in files)


@pytest.mark.parametrize("way", ["factory", "rollouts"])
def test_one_group_in_two_is_recorded(train, way, tmp_path):
    trainer = train(way, masked_rewards(Facts()), record=tmp_path / "record", record_every=2)
    rollouts_of(trainer)
    runs = [Trajectory.load(file).root for file in sorted(tmp_path.rglob("*.jsonl"))]
    assert [run.task.name for run in runs] == ["words-1", "words-1"]


def test_a_rollout_whose_tokens_are_used_up_says_so(train, tmp_path):
    facts, talk = Facts(), fenced("print('word ' * 200)")
    trainer = train(
        "rollouts", masked_rewards(facts), record=tmp_path / "record",
        replies=[[talk, RIGHT], [RIGHT], [RIGHT], [RIGHT]],
        settings={"max_completion_length": 120},
    )  # fmt: skip
    rollouts_of(trainer)
    reasons = ["max_completion_length", "answer", "answer", "answer"]
    assert facts.columns["episode_stop_reason"] == reasons
    runs = [Trajectory.load(file).root for file in sorted(tmp_path.rglob("*.jsonl"))]
    assert [run.ended.stop_reason for run in runs] == reasons


@pytest.mark.parametrize("make", [REPLToolEnv, partial(rollout_func, ROWS)])
def test_bad_arguments_of_records_are_named(make, tmp_path):
    with pytest.raises(TypeError, match="record must be"):
        make(record=3)
    with pytest.raises(ValueError, match="record_every"):
        make(record=tmp_path, record_every=0)
