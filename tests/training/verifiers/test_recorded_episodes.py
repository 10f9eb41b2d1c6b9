"""Facts of episodes for reward functions of verifiers, and rollouts as trajectory files."""

from __future__ import annotations

import pytest

from repl_env import AsyncLocalREPLEnv
from repl_env.integrations.verifiers import EpisodeRecord
from repl_env.rlm import Trajectory
from tests.training.lost_sessions import lose
from tests.training.replies import code
from tests.training.verifiers.scripted_episodes import play, task

LOOK, FAILS, ANSWER = code("n = len(context.split())"), code("1 / 0"), code("FINAL(n)")


@pytest.mark.parametrize("mode", ["chat", "rlm"])
async def test_a_record_has_the_facts_by_their_names(endpoint, mode):
    episode = await play(endpoint([LOOK, FAILS, ANSWER]), task(), mode=mode)
    facts = EpisodeRecord.of(episode.traces[0]).episode.to_dict()
    assert facts == {
        "answer": "3",
        "answer_value": 3,
        "steps": 3,
        "error_kinds": [None, "exception", None],
        "components": {"process": pytest.approx(-0.05), "outcome": 1.0},
        "reward": pytest.approx(0.95),
        "task_reward": 1.0,
        "masked": False,
        "stop_reason": "answer",
    }


async def test_the_rollouts_of_a_task_are_recorded_as_a_group(endpoint, tmp_path):
    for replies in ([LOOK, ANSWER], [FAILS, code("FINAL(4)")]):
        await play(endpoint(replies), task(name="words"), record=str(tmp_path), record_every=2)
    await play(endpoint([ANSWER]), task(name="other"), record=str(tmp_path), record_every=2)
    runs = [Trajectory.load(file).root for file in sorted(tmp_path.rglob("*.jsonl"))]
    assert [run.reward for run in runs] == pytest.approx([1.0, -0.05])
    assert {run.task.group_id for run in runs} == {"words"}
    first, second = runs[0].turns
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert [turn.completion.text for turn in (first, second)] == [LOOK, ANSWER]


async def test_a_lost_session_is_recorded_as_masked(endpoint, monkeypatch, tmp_path):
    step = AsyncLocalREPLEnv.step

    async def losing(self, action, **given):
        lose(self.session)
        return await step(self, action, **given)

    monkeypatch.setattr(AsyncLocalREPLEnv, "step", losing)
    episode = await play(endpoint(ANSWER), task(), record=str(tmp_path))
    assert not episode.ok
    (file,) = tmp_path.rglob("*.jsonl")
    run = Trajectory.load(file).root
    assert (run.reward, run.error_kind) == (None, "sandbox")


async def test_a_run_of_the_loop_is_recorded_with_its_sub_calls(endpoint, tmp_path):
    ask = code("print(llm_query('How many words has this? ' + context))")
    harness = {"id": "repl-env-verifiers", "record": str(tmp_path)}
    env = {"mode": "rlm", "agent": {"harness": harness, "runtime": {"type": "subprocess"}}}
    episode = await play(endpoint([ask, "three", code("FINAL(3)")]), task(name="words"), env)
    assert episode.ok
    (file,) = tmp_path.rglob("*.jsonl")
    run = Trajectory.load(file).root
    assert (run.task.group_id, run.reward, len(run.turns)) == ("words", 1.0, 2)
    assert [call.text for call in run.calls] == ["three"]
