"""Rollback in an episode: the session goes back, the episode does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv, NotReset, REPLAction, REPLEnvironment
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
