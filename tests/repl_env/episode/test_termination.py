"""The end of an episode, and the task reward."""

from __future__ import annotations

import os
from collections.abc import Collection

import psutil
import pytest

from repl_env import AsyncLocalREPLEnv, REPLVectorEnv
from repl_env.models import StepResult
from repl_env.rlm.budget import Budget
from repl_env.rubrics import ExactMatchRubric, REPLRubric, Rubric
from tests.internals import session_links
from tests.repl_env.rewards.test_rubrics import ended

SPEND = "from time import process_time as t\nend = t() + 1\nwhile t() < end: pass"


def how(result):
    """Return the end of an episode by a result and by its observation."""
    told = (result.terminated, result.truncated, result.metadata["ended"])
    observation = result.observation
    assert told[:2] == (observation.terminated, observation.truncated)
    assert result.done == (result.terminated or result.truncated)
    return told


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        (["x = 1"], (False, False, None)),
        (["FINAL(1)"], (True, False, "terminated")),
        (["FINAL(1)\n1/0"], (True, False, "terminated")),
        (["x = 1", "FINAL(1)"], (True, False, "terminated")),
        (["x = 1", "x = 2"], (False, True, "truncated")),
        (["x = 1", "1/0"], (False, True, "truncated")),
        (["answer['content'] = 'draft'", "x = 2"], (False, True, "truncated")),
        ([SPEND], (False, True, "truncated")),
    ],
)
def test_an_answer_terminates_and_a_limit_truncates(make, codes, told):
    env = make(llm_query_fn=str.upper, budget=Budget(cpu_seconds=0.5))
    assert how(env.reset(max_iterations=2)) == (False, False, None)
    for code in codes:
        result = env.execute(code)
    assert how(result) == told


def test_a_submitted_answer_terminates_unless_it_is_refused(make):
    env = make()
    env.reset(answer_schema={"type": "integer"})
    assert how(env.submit_final_answer("a")) == (False, False, None)
    assert how(env.submit_final_answer(1)) == (True, False, "terminated")


async def test_a_closed_episode_is_truncated(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        assert how(await env.give_up()) == (False, True, "truncated")


def test_an_episode_that_lost_its_session_is_truncated(sandbox):
    with REPLVectorEnv(2, sandbox=sandbox) as envs:
        envs.reset()
        links = session_links(envs.environments[1].session)
        worker = psutil.Process(links.worker_pid)
        os.kill(links.pid, 9)
        assert psutil.wait_procs([worker], timeout=60)[1] == []
        fine, lost = envs.step(["FINAL(1)", "FINAL(1)"])
    assert (how(fine), how(lost)) == ((True, False, "terminated"), (False, True, "truncated"))
    assert lost.metadata["task_reward"] == lost.observation.task_reward == 0.0


@pytest.mark.parametrize(("answer", "told"), [("x", (True, False)), (None, (False, True))])
def test_without_a_reason_of_the_server_an_answer_means_terminated(answer, told):
    observation = ended(answer)
    observation.metadata.pop("stop_reason", None)
    result = StepResult(observation, 0.0, True, observation.metadata)
    assert (result.terminated, result.truncated) == told
    assert (result.task_reward, StepResult(observation).task_reward) == (None, None)


class Brief(Rubric):
    """The outcome, less for long code."""

    shaping: Collection[str] = ("length",)

    def __init__(self):
        self.match = ExactMatchRubric()
        self.parts = {}

    def set_expected(self, expected):
        self.match.set_expected(expected)

    def components(self):
        return self.parts

    def forward(self, action, observation):
        outcome = self.match(action, observation)
        self.parts = {"outcome": outcome, "length": -len(action.code) / 1000}
        return sum(self.parts.values())


class OneShaping(Brief):
    shaping = "length"


@pytest.mark.parametrize(
    ("rubric", "codes", "parts", "task"),
    [
        (REPLRubric(), ["1/0"], {"process": -0.05}, 0.0),
        (REPLRubric(), ["x = 1"], {"process": 0.0}, 0.0),
        (REPLRubric(), ["FINAL(1)"], {"outcome": 1.0}, 1.0),
        (REPLRubric(), ["FINAL(2)"], {"outcome": 0.0}, 0.0),
        (REPLRubric(), ["x = 1", "x = 1"], {"failure": -0.1}, 0.0),
        (Brief(), ["FINAL(1)"], {"outcome": 1.0, "length": -0.008}, 1.0),
        (OneShaping(), ["FINAL(1)"], {"outcome": 1.0, "length": -0.008}, 1.0),
        (ExactMatchRubric(), ["FINAL(1)"], {"ExactMatchRubric": 1.0}, 1.0),
    ],
)
def test_the_task_reward_is_reported_apart(make, rubric, codes, parts, task):
    env = make(rubric=rubric)
    assert env.reset(expected_answer="1", max_iterations=2).task_reward == 0.0
    for code in codes:
        result = env.execute(code)
    assert result.metadata["reward_components"] == parts
    assert sum(parts.values()) == pytest.approx(result.reward)
    assert (result.task_reward, result.metadata["task_reward"]) == (task, task)


def test_an_infrastructure_error_pays_nothing(make):
    def no_route(prompt):
        raise ConnectionError(prompt)

    env = make(llm_query_fn=no_route, rubric=Brief())
    env.reset(expected_answer="1")
    result = env.execute("llm_query('x')\nFINAL(1)")
    assert (result.reward, result.task_reward, result.terminated) == (0.0, 0.0, True)
