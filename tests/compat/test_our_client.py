"""`repl_env.REPLEnv` against OpenEnv's own server."""

from __future__ import annotations

import pytest

from repl_env import REPLEnv
from repl_env.errors import ServerError
from tests.compat.environments import wanted

pytestmark = wanted


async def test_an_episode_on_openenv_s_server(their_server: str) -> None:
    async with REPLEnv(their_server) as env:
        await env.reset(context="one two three", expected_answer="3", episode_id="episode-1")
        step = await env.execute("count = len(context.split())\ncount")
        names = await env.list_variables()
        state = await env.state()
        end = await env.execute("FINAL(count)")

    assert step.observation.result.value == "3"
    assert "count" in names
    assert (state.episode_id, state.step_count) == ("episode-1", 1)
    assert (end.reward, end.done, end.metadata["final_answer"]) == (1.0, True, "3")


def test_the_same_in_plain_code(their_server: str) -> None:
    with REPLEnv(their_server).sync() as env:
        env.reset(expected_answer="3")
        end = env.submit_final_answer("3")

    assert (end.reward, end.done) == (1.0, True)


async def test_what_openenv_s_server_refuses_is_an_error_and_the_session_lives(
    their_server: str,
) -> None:
    async with REPLEnv(their_server) as env:
        with pytest.raises(ServerError, match="Call reset") as early:
            await env.execute("1")
        await env.reset()
        await env.execute("FINAL(1)")
        with pytest.raises(ServerError, match="done") as late:
            await env.execute("1")
        await env.reset()
        result = await env.execute("6 * 7")

    assert {early.value.code, late.value.code} == {"EXECUTION_ERROR"}
    assert result.observation.result.value == "42"
