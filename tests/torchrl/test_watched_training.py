"""Training that one can watch: facts of episodes, reward functions, shares for logs, records."""

from __future__ import annotations

import copy
import pickle

import pytest
from tensordict import set_list_to_stack
from torchrl.envs import TransformedEnv
from torchrl.envs.llm import ChatEnv

from repl_env.integrations.torchrl import (
    DatasetREPLChatEnv,
    EpisodeReward,
    LogEpisodes,
    REPLChatEnv,
    REPLToolTransform,
)
from repl_env.rlm import Trajectory
from tests.torchrl.policies import asked, block, replied
from tests.training.lost_sessions import lose

set_list_to_stack(True).set()

LOOK, RIGHT, FAILS = block("n = 3"), block("FINAL(n)"), block("1 / 0")
THREE, WRONG = block("FINAL(3)"), block("FINAL(0)")
HIDDEN = "a-hidden-answer-4711"
COLUMNS = {
    "context": ["a b c"] * 2,
    "expected_answer": [3, 3],
    "task_id": ["words", "words"],
}


def chat(**arguments):
    return REPLChatEnv(batch_size=2, max_iterations=3, **arguments)


def tools(**arguments):
    transform = REPLToolTransform(max_iterations=3, **arguments)
    return TransformedEnv(ChatEnv(batch_size=(2,)), transform)


KINDS = pytest.mark.parametrize("make", [chat, tools])


def start(env, **columns):
    return env.reset(asked("How many?", "How many?", **{**COLUMNS, **columns}))


def step(env, td, *replies):
    """The entries after a step, and the tensordict for the next one."""
    stepped = env.step(replied(td, *replies))
    return stepped, env.step_mdp(stepped)


@KINDS
def test_each_step_has_the_facts_of_its_episodes(make):
    env = make()
    td = start(env)
    assert [facts["steps"] for facts in td["episode"]] == [0, 0]
    _, td = step(env, td, LOOK, FAILS)
    whole, _ = step(env, td, RIGHT, "I am lost.")
    won, lost = whole["next", "episode"]
    assert won == {
        "answer": "3",
        "answer_value": 3,
        "steps": 2,
        "error_kinds": [None, None],
        "components": {"process": 0.0, "outcome": 1.0},
        "reward": 1.0,
        "task_reward": 1.0,
        "masked": False,
        "stop_reason": "answer",
    }
    assert lost["error_kinds"] == ["exception", "format"] and lost["answer"] is None
    assert whole["episode"][0]["steps"] == 1
    env.close()


def brevity(episode_steps, episode_masked, task_id, expected_answer, **_):
    """A reward function, as TRL has them."""
    assert set(task_id) == {"words"} and set(expected_answer) == {3}
    assert len(episode_masked) == len(episode_steps)
    return [None if steps > 2 else -0.1 * steps for steps in episode_steps]


@KINDS
def test_a_reward_function_adds_to_the_step_that_ends_an_episode(make):
    env = make()
    env = env.append_transform(EpisodeReward(brevity, weight=2.0))
    td = start(env)
    first, td = step(env, td, THREE, LOOK)
    assert first["next", "reward"].flatten().tolist() == pytest.approx([0.8, 0.0])
    _, td = step(env, td, LOOK, LOOK)
    last, _ = step(env, td, LOOK, RIGHT)
    # The first row has ended before, and three steps have no reward.
    assert last["next", "reward"].flatten().tolist() == pytest.approx([0.0, 1.0])
    env.close()


def test_a_masked_episode_gets_no_reward_of_a_function():
    env = chat()
    env = env.append_transform(EpisodeReward(lambda episode_steps, **_: [5.0] * 2))
    td = start(env)
    lose(env.base_env.episodes.environments.environments[0].session)
    whole, _ = step(env, td, RIGHT, THREE)
    assert whole["next", "masked"].flatten().tolist() == [True, False]
    assert whole["next", "reward"].flatten().tolist() == [0.0, 6.0]
    assert LogEpisodes()(whole)["masked_share"] == 0.5
    env.close()


@pytest.mark.parametrize(
    ("function", "error", "told"),
    [(3, TypeError, "function must be callable"), (lambda **_: [1.0], ValueError, "1 rewards for")],
)
def test_a_bad_reward_function_is_named(function, error, told):
    with pytest.raises(error, match=told):
        play_with(function)


def play_with(function):
    env = chat()
    try:
        env = env.append_transform(EpisodeReward(function))
        step(env, start(env), THREE, THREE)
    finally:
        env.close()


def test_the_shares_count_each_episode_once():
    env, log = chat(), LogEpisodes()
    td = start(env)
    first, td = step(env, td, FAILS, LOOK)
    assert log(first)["failed_share"] == 0.5  # of the steps, because no episode has ended
    second, td = step(env, td, THREE, FAILS)
    assert log(second) == {
        "masked_share": 0.0, "answered_share": 1.0, "failed_share": 1.0,
        "failed_share/exception": 1.0, "log_pbar": True,
    }  # fmt: skip
    last, _ = step(env, td, LOOK, block("FINAL(4)"))
    assert log(last)["answered_share"] == 1.0 and log(last)["failed_share/exception"] == 1.0
    env.close()


@KINDS
def test_rollouts_are_recorded_in_groups(make, tmp_path):
    env = make(record=tmp_path, record_every=2)
    for expected in (3, HIDDEN, 3):
        td = start(env, expected_answer=[expected] * 2)
        _, td = step(env, td, LOOK, FAILS)
        step(env, td, RIGHT, WRONG)
    env.close()
    files = sorted(tmp_path.rglob("*.jsonl"))
    runs = [Trajectory.load(file).root for file in files]
    assert [run.reward for run in runs] == pytest.approx([1.0, -0.05] * 2)
    assert len({run.task.group_id for run in runs}) == 2
    assert {(run.task.name, run.question) for run in runs} == {("words", "How many?")}
    assert runs[0].turns[1].messages[-1]["role"] == ("user" if make is chat else "tool")
    assert [turn.completion.text for turn in runs[0].turns] == [LOOK, RIGHT]


def test_no_record_has_a_hidden_answer_or_its_hash(tmp_path):
    tasks = [{"text": "How many?", "context": "a b c", "expected_answer": HIDDEN}]
    env = DatasetREPLChatEnv(
        dataset=tasks, num_envs=1, repeats=2, group_repeats=True, record=tmp_path
    )
    td = env.reset()
    (name,) = set(td["task_id"])
    env.step(replied(td, THREE, block("FINAL(4)")))
    env.close()
    files = sorted(tmp_path.rglob("*.jsonl"))
    assert (
        len(files) == 2 and len({Trajectory.load(file).root.task.group_id for file in files}) == 1
    )
    for file in files:
        content = file.read_bytes()
        assert HIDDEN.encode() not in content and name.encode() not in content


def test_a_prompt_beyond_the_window_ends_the_record(tmp_path, tokenizer):
    env = chat(record=tmp_path, tokenizer=tokenizer, max_prompt_tokens=60)
    td = start(env)
    step(env, td, block("print('word ' * 200)"), THREE)
    runs = [Trajectory.load(file).root for file in sorted(tmp_path.rglob("*.jsonl"))]
    assert {run.ended.stop_reason for run in runs} == {"max_prompt_tokens", "answer"}
    env.close()


def test_copies_record_into_the_same_folder(tmp_path):
    first = chat(record=tmp_path)
    for env in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        step(env, start(env), THREE, THREE)
        env.close()
    assert len(list(tmp_path.rglob("*.jsonl"))) == 6
