"""A reply that held no action: a step that runs nothing, counts, and may be penalised."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from repl_env import (
    AsyncLocalREPLEnv,
    EpisodeDone,
    REPLAction,
    REPLEnv,
    REPLEnvironment,
    REPLVectorEnv,
)
from repl_env.env.recordings import Recorder, replay
from repl_env.rlm.budget import Budget
from repl_env.rubrics import CustomMetricRubric, OutcomeRubric, REPLRubric
from tests.server.conftest import DEFAULTS, serving

TOLD = "No code block was found. Write one."
WRONG = REPLAction(format_error=TOLD)


def assert_refused(result, iteration=1):
    observation = result.observation
    assert (observation.iteration, observation.error_kind) == (iteration, "format")
    shown = observation.result
    assert (shown.stderr, shown.exception, shown.success) == (TOLD, TOLD, False)
    assert (result.reward, result.done) == (-0.05, False)
    assert result.metadata["reward_components"] == {"format": -0.05}
    assert (result.task_reward, result.metadata["mask"]) == (0.0, False)


def test_a_format_error_counts_and_changes_nothing_in_the_session(make):
    env = make()
    env.reset(expected_answer="1")
    env.execute("x = 1")
    assert_refused(env.step(WRONG), iteration=2)
    assert env.state().iteration == 2
    assert "x" in env.list_variables()
    last = env.execute("FINAL(x)")
    assert (last.reward, last.metadata["reward_components"]) == (1.0, {"outcome": 1.0})


async def test_a_format_error_is_the_same_step_in_every_environment(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        assert_refused(await env.step(WRONG))
    with REPLVectorEnv(3, sandbox=sandbox) as envs:
        envs.reset()
        wrong, ran, none = envs.step([WRONG, "x = 1", None])
        assert_refused(wrong)
        assert (ran.observation.error_kind, none) == (None, None)
    async with REPLVectorEnv(1, sandbox=sandbox) as envs:
        await envs.areset()
        assert_refused((await envs.astep([WRONG]))[0])
    environment = REPLEnvironment(sandbox=sandbox)
    environment.reset()
    assert environment.step(WRONG).error_kind == "format"
    environment.close()


def test_a_format_error_is_the_same_step_on_a_server():
    with serving(DEFAULTS) as server, REPLEnv(server.url).sync() as env:
        env.reset(max_iterations=2)
        assert_refused(env.step(WRONG))
        last = env.step(WRONG)
    assert last.truncated
    assert last.reward == pytest.approx(-0.15)


class Later(OutcomeRubric):
    async def forward(self, action, observation):
        return OutcomeRubric.forward(self, action, observation)

    def compare(self, expected, text, value):
        return float(expected == text)


ENDINGS = [
    ("pass", {"failure": -0.1, "format": -0.2}, 0.0),
    ("answer['content'] = 'right'", {"outcome": 1.0, "format": -0.2}, 1.0),
    ("answer['content'] = 'wrong'", {"outcome": 0.0, "format": -0.2}, 0.0),
]


@pytest.mark.parametrize(("code", "parts", "task"), ENDINGS)
async def test_the_last_iteration_ends_the_episode_and_is_penalised_too(
    make, sandbox, code, parts, task
):
    def check(last):
        assert (last.done, last.truncated, last.observation.error_kind) == (True, True, "format")
        assert last.metadata["reward_components"] == parts
        assert last.reward == pytest.approx(sum(parts.values()))
        assert last.task_reward == task
        assert TOLD in last.observation.result.stderr

    env = make(rubric=REPLRubric(format_penalty=-0.2))
    env.reset(expected_answer="right", max_iterations=2)
    env.execute(code)
    check(env.step(WRONG))
    with pytest.raises(EpisodeDone):
        env.step(WRONG)
    later = REPLRubric(Later(), format_penalty=-0.2)
    async with AsyncLocalREPLEnv(sandbox=sandbox, rubric=later) as env:
        await env.reset(expected_answer="right", max_iterations=2)
        await env.execute(code)
        check(await env.step(WRONG))


def test_a_penalty_applies_to_its_own_step_alone(make):
    env = make(rubric=REPLRubric(CustomMetricRubric(lambda e, p: 0.5), format_penalty=-1))
    env.reset(expected_answer="x")
    env.step(WRONG)
    assert env.execute("1/0").metadata["reward_components"] == {"process": -0.05}
    env.reset(expected_answer="x", max_iterations=1)
    env.step(WRONG)
    env.reset(expected_answer="x")
    assert env.execute("FINAL(1)").metadata["reward_components"] == {"outcome": 0.5}


def test_time_that_is_used_up_ends_the_episode(make):
    env = make(llm_query_fn=str.upper, budget=Budget(seconds=1e-6))
    env.reset()
    result = env.step(WRONG)
    assert (result.done, result.metadata["stop_reason"]) == (True, "budget")
    assert (result.observation.error_kind, result.truncated) == ("format", True)


def test_a_long_text_is_truncated_and_lone_surrogates_are_escaped(make):
    env = make(max_output_length=100)
    env.reset()
    result = env.step(REPLAction(format_error="\ud800" + "x" * 1_000)).observation.result
    assert len(result.stderr) < 250
    assert (result.truncated, result.stderr[:2]) == (True, "?x")
    json.dumps(result.model_dump(mode="json")).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "x = 1"},
        {"is_final": True, "final_answer": 1},
        {"format_error": ""},
        {"format_error": 1},
    ],
)
def test_an_action_has_either_code_or_a_format_error(fields):
    with pytest.raises(ValidationError, match="format_error"):
        REPLAction(**{"format_error": TOLD, **fields})


def test_the_penalty_is_a_number():
    with pytest.raises(TypeError, match="format_penalty must be a number"):
        REPLRubric(format_penalty="-1")


def test_a_format_error_is_recorded_and_replayed(make):
    recorder = Recorder(make())
    recorder.reset(max_iterations=2)
    recorder.step(WRONG)
    recorder.execute("1")
    recording = type(recorder.recording).from_json(recorder.recording.to_json())
    assert recording.actions[0].format_error == TOLD
    assert replay(recording, make()) == ()
