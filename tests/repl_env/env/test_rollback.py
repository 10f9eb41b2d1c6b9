"""Rollback in an episode: the session goes back, the episode does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from repl_env import (
    AsyncLocalREPLEnv,
    LocalREPLEnv,
    NotReset,
    REPLAction,
    REPLEnvironment,
    REPLVectorEnv,
)
from repl_sandbox import AsyncSandbox, Sandbox, SandboxError


def step(env, code):
    return env.step(REPLAction(code=code))


def test_variables_and_files_go_back_and_the_episode_does_not():
    with Sandbox(history=2) as sandbox:
        env = REPLEnvironment(sandbox=sandbox)
        with pytest.raises(NotReset):
            env.rollback()
        env.reset(context="abc", expected_answer="1")
        step(env, "x = 1")
        step(env, "x = 2; y = 3; open('f', 'w').write('a'); del context")
        assert env.rollback() == ()
        assert "y" not in env.variables and "context" in env.variables
        result = step(env, "import os; (x, os.path.exists('f'), context)")
        assert result.result.value == "(1, False, 'abc')"
        assert result.iteration == 3
        step(env, "FINAL(x)")
        env.rollback(2)
        assert env.state.final_answer == "1"
        for cells, error in ((0, ValueError), (9, ValueError), ("1", TypeError)):
            with pytest.raises(error):
                env.rollback(cells)
        env.close()


def test_the_local_doors_have_it_too():
    async def scenario():
        async with AsyncSandbox() as sandbox, AsyncLocalREPLEnv(sandbox=sandbox) as env:
            await env.reset()
            await env.execute("x = 1")
            await env.execute("x = 2")
            await env.rollback()
            return (await env.execute("x")).observation.result.value

    assert asyncio.run(scenario()) == "1"
    with Sandbox() as sandbox, LocalREPLEnv(sandbox=sandbox) as env:
        env.reset()
        env.execute("x = 1")
        env.rollback()
        assert "x" not in env.list_variables()


def test_a_session_without_such_a_state_is_left_as_it_is():
    async def scenario():
        async with AsyncSandbox() as sandbox:
            env = REPLEnvironment(sandbox=sandbox)
            await env.reset_async(context="abc")
            for number in range(5):
                await env.step_async(REPLAction(code=f"x = {number}"))
            await env.rollback_async()
            with suppress(SandboxError):  # the sandbox promises one state, and may keep more
                await env.rollback_async()
                await env.rollback_async()
            with pytest.raises(SandboxError, match="session is unchanged"):
                await env.rollback_async()
            with pytest.raises(RuntimeError, match="reset_async"):
                env.rollback()
            assert (await env.step_async(REPLAction(code="0 < x < 4"))).result.value == "True"
            await env.close_async()

    asyncio.run(scenario())


def test_an_environment_keeps_as_many_states_as_it_is_told():
    with LocalREPLEnv(history=2) as env:
        env.reset()
        for code in ("x = 1", "x = 2", "x = 3"):
            env.execute(code)
        env.rollback(2)
        assert env.execute("x").observation.result.value == "1"
        with pytest.raises(ValueError, match=r"keeps 2 earlier states; give .* history=3"):
            env.rollback(3)
    with REPLVectorEnv(1, history=1) as envs:
        envs.reset()
        envs.step(["x = 1"])
        envs.environments[0].rollback()
        assert "x" not in envs.environments[0].list_variables()


def test_an_environment_keeps_no_state_unless_it_is_told():
    with LocalREPLEnv() as env:
        env.reset()
        env.execute("x = 1")
        with pytest.raises(ValueError, match=r"keeps 0 earlier states; give .* history=1"):
            env.rollback()
        assert env.execute("x").observation.result.value == "1"


@pytest.mark.parametrize(
    ("history", "error"), [(-1, ValueError), ("1", TypeError), (True, TypeError)]
)
def test_a_wrong_number_of_states_is_refused(history, error):
    with pytest.raises(error, match="history must be"):
        LocalREPLEnv(history=history)
    with (
        Sandbox() as sandbox,
        pytest.raises(TypeError, match="history: it has its own"),
    ):
        LocalREPLEnv(sandbox=sandbox, history=1)
