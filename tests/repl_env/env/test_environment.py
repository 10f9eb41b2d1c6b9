"""`REPLEnvironment` has OpenEnv's shape, and the same rules for plain and asynchronous callers."""

from functools import partial

import pytest

from repl_env import REPLAction, REPLEnvironment
from repl_env.errors import NotReset
from repl_env.interfaces import Environment, Transform
from repl_env.rubrics import Rubric
from repl_sandbox import AsyncSandbox


def run(code):
    return REPLAction(code=code)


@pytest.fixture
def environment(sandbox):
    environment = REPLEnvironment(context="from the constructor", sandbox=sandbox)
    yield environment
    environment.close()


def test_the_environment_declares_that_it_supports_concurrent_sessions(environment):
    assert isinstance(environment, Environment)
    assert environment.SUPPORTS_CONCURRENT_SESSIONS


def test_openenvs_arguments_are_positional(sandbox):
    environment = REPLEnvironment("text", "task", 7, 100, 2, sandbox=sandbox)
    observation = environment.reset()
    assert observation.metadata["task_prompt"] == "task"
    assert (observation.max_iterations, observation.context_preview) == (7, "te")
    environment.close()


def test_reset_takes_openenvs_arguments_by_position(environment):
    observation = environment.reset(3, "episode", "text", "task", None, None)
    assert environment.state.episode_id == "episode"
    assert environment.state.context == "text"
    assert observation.metadata["task_prompt"] == "task"


def test_the_context_of_a_reset_goes_before_the_constructors(environment):
    assert environment.reset().context_length == len("from the constructor")
    assert environment.reset(context="").context_length == 0
    assert environment.reset(context="ab").context_length == 2


def test_unknown_arguments_are_ignored_and_named(environment):
    first = environment.reset(prompt="p", dataset_index=3, expected_answer="a")
    assert first.metadata["ignored"] == ["dataset_index", "prompt"]
    step = environment.step(run("1"), request_id="r")
    assert step.metadata["ignored"] == ["request_id"]


def test_state_is_a_property(environment):
    with pytest.raises(NotReset):
        _ = environment.state
    environment.reset()
    assert environment.state.iteration == 0
    environment.step(run("x = 1"))
    assert environment.state.iteration == 1


def test_metadata_has_openenvs_name(environment):
    metadata = environment.get_metadata()
    assert metadata.name == "repl_env"
    assert metadata.description == "Python REPL environment for RLM-style code execution"


def test_closing_twice_and_resetting_after_it_are_fine(environment):
    environment.reset()
    environment.close()
    environment.close()
    environment.reset()
    assert environment.step(run("1 + 1")).result.value == "2"


def failing_at_reset(observation):
    """A transform that cannot do with the first observation."""
    if not observation.iteration:
        raise KeyError("nothing yet")
    return observation


def test_a_reset_whose_transform_fails_leaves_no_episode(sandbox):
    before = sandbox.statistics().open
    environment = REPLEnvironment(transform=failing_at_reset, sandbox=sandbox)
    with pytest.raises(KeyError, match="nothing yet"):
        environment.reset()
    with pytest.raises(NotReset):
        environment.step(REPLAction(code="1"))
    assert sandbox.statistics().open == before


async def test_a_reset_whose_transform_fails_leaves_none_on_an_event_loop_either(sandbox):
    before = sandbox.statistics().open
    environment = REPLEnvironment(transform=failing_at_reset, sandbox=sandbox)
    with pytest.raises(KeyError, match="nothing yet"):
        await environment.reset_async()
    with pytest.raises(NotReset):
        await environment.step_async(REPLAction(code="1"))
    assert sandbox.statistics().open == before


def test_a_transform_comes_before_the_score(sandbox):
    class Bonus(Transform):
        def __call__(self, observation):
            observation.metadata["bonus"] = 0.75
            return observation

    class ByBonus(Rubric):
        def forward(self, action, observation):
            return observation.metadata["bonus"]

    environment = REPLEnvironment(rubric=ByBonus(), transform=Bonus(), sandbox=sandbox)
    environment.reset()
    assert environment.step(run("1")).reward == 0.75
    environment.close()


async def test_a_blocking_episode_refuses_asynchronous_calls(environment):
    environment.reset()
    for use in (partial(environment.step_async, run("1")), environment.draft_async):
        with pytest.raises(RuntimeError, match="begun by reset; go on with reset, step"):
            await use()
    assert environment.step(run("1 + 1")).result.value == "2"


async def test_an_asynchronous_episode_refuses_blocking_calls():
    async with AsyncSandbox() as sandbox:
        environment = REPLEnvironment(sandbox=sandbox)
        await environment.reset_async()
        step = partial(environment.step, run("1"))
        for use in (step, environment.draft, environment.close, environment.reset):
            with pytest.raises(RuntimeError, match="begun by reset_async"):
                use()
        assert (await environment.step_async(run("1 + 1"))).result.value == "2"
        await environment.close_async()
        environment.close()


async def test_a_plain_sandbox_serves_asynchronous_episodes_too(sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    await environment.reset_async()
    assert (await environment.step_async(run("1 + 1"))).result.value == "2"
    await environment.close_async()
    with sandbox.session() as session:
        assert session.run("2 + 2").value == "4"


async def test_a_sandbox_of_the_wrong_kind_is_refused():
    async with AsyncSandbox() as other:
        with pytest.raises(RuntimeError, match="AsyncSandbox"):
            REPLEnvironment(sandbox=other).reset()
    with pytest.raises(TypeError, match="sandbox"):
        REPLEnvironment(sandbox="jailed")


def test_output_is_streamed_while_the_code_runs(sandbox):
    """By a function of the caller, for which the code can wait only if output is streamed."""
    heard = []
    environment = REPLEnvironment(sandbox=sandbox, tools={"heard": lambda: "".join(heard)})
    environment.reset()
    code = "print('early', flush=True)\nwhile 'early' not in heard(): pass\nprint('late')"

    observation = environment.step(
        REPLAction(code=code), on_output=lambda _, text: heard.append(text)
    )

    assert "".join(heard) == observation.result.stdout == "early\nlate\n"
    assert "ignored" not in observation.metadata
    environment.close()


def test_an_invalid_output_callback_is_refused_and_nothing_runs(sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    environment.reset()
    with pytest.raises(TypeError, match="on_output must be a plain function"):
        environment.step(REPLAction(code="x = 1\nprint(x)"), on_output=[])
    observation = environment.step(REPLAction(code="'x' in globals()"))
    assert (observation.result.value, observation.metadata["mask"]) == ("False", False)
    environment.close()


async def test_output_is_streamed_on_an_event_loop_too(sandbox):
    heard = {"stdout": "", "stderr": ""}

    def hear(stream, text):
        heard[stream] += text

    environment = REPLEnvironment(sandbox=sandbox)
    await environment.reset_async()

    await environment.step_async(
        REPLAction(code="import sys; print('out'); print('err', file=sys.stderr)"),
        on_output=hear,
    )

    assert heard == {"stdout": "out\n", "stderr": "err\n"}
    await environment.close_async()
