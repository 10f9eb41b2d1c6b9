"""`REPLEnv` against OpenEnv's own server, with an environment of neither project."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_env import REPLAction, REPLEnv
from repl_env.errors import (
    CapacityReached,
    NotSupported,
    ReplyTimeout,
    ServerError,
    SessionLost,
    TooLarge,
)
from tests.compat.environments import HERE, NEWEST, program, served, wanted
from tests.repl_env.client.connection.relay import Relay

pytestmark = wanted


@pytest.fixture(scope="module")
def theirs() -> Iterator[str]:
    """One server for all tests of this file; it has one session at a time."""
    with served(program(NEWEST, "python"), str(HERE / "their_environment.py")) as url:
        yield url


def test_an_episode_of_an_openenv_environment(theirs: str) -> None:
    with REPLEnv(theirs).sync() as env:
        first = env.reset(context="abc", task_prompt="what?", episode_id="e1")
        assert first.observation.result.stdout == "ready ['task_prompt']"
        assert env.execute("x = 1; print(context)").observation.result.stdout == "abc\n"
        assert env.get_variable("x").observation.result.stdout == "1\n"
        assert env.list_variables() == ["context", "x"]
        state = env.state()
        assert (state.episode_id, state.step_count, state.context) == ("e1", 2, "abc")
        last = env.submit_final_answer("c")
        assert (last.done, last.reward, last.metadata) == (True, 1.0, {"final_answer": "c"})


def test_an_error_of_an_openenv_environment_is_raised_and_the_session_goes_on(theirs: str) -> None:
    with REPLEnv(theirs).sync() as env:
        env.reset()
        env.execute("x = 1")
        with pytest.raises(ServerError, match="EXECUTION_ERROR"):
            env.execute("1 / 0")
        with pytest.raises(ServerError) as caught:
            env.submit_final_answer(["no text"])
        assert caught.value.code == "VALIDATION_ERROR"
        assert "final_answer" in str(caught.value)
        assert env.execute("print(x)").observation.result.stdout == "1\n"


def test_an_unsupported_request_of_openenv_s_server_is_an_error(theirs: str) -> None:
    heard = []
    with REPLEnv(theirs).sync() as env:
        env.reset()
        with pytest.raises(NotSupported, match="timeout_s"):
            env.execute("x", timeout_s=5)
        with pytest.raises(NotSupported, match="branch"):
            env.branch()
        env.execute("print('at the end')", on_output=lambda *told: heard.append(told))

    assert heard == [("stdout", "at the end\n")]


def test_a_context_over_openenv_s_limit_is_an_error_that_names_sizes(theirs: str) -> None:
    with REPLEnv(theirs).sync() as env:
        env.reset(context="x" * (15 << 20))
        with pytest.raises(TooLarge, match=r"17,8\d\d,\d{3} bytes.*16777216"):
            env.reset(context="x" * (17 << 20))
        with pytest.raises(SessionLost):
            env.execute("x")
        env.reset(context="x")


def test_openenv_s_server_is_full_with_one_client(theirs: str) -> None:
    with REPLEnv(theirs).sync() as env:
        env.reset()
        with pytest.raises(CapacityReached):
            REPLEnv(theirs).sync().reset()


def test_a_time_out_keeps_the_session(theirs: str) -> None:
    """Their own client drops the connection there, and its next step is in another session."""
    with REPLEnv(theirs, message_timeout_s=3).sync() as env:
        env.reset()
        env.execute("x = 1; import time")
        with pytest.raises(ReplyTimeout):
            env.execute("time.sleep(4); print('late')")
        while True:
            try:
                after = env.step(REPLAction(code="print(x)"))
            except ReplyTimeout:
                continue
            break
    assert after.observation.result.stdout == "1\n"


async def test_a_connection_that_breaks_is_a_session_lost(theirs: str) -> None:
    async with (
        Relay(int(theirs.rpartition(":")[2])) as network,
        REPLEnv(network.url) as env,
    ):
        await env.reset()
        network.snap()
        for _ in range(2):
            with pytest.raises(SessionLost):
                await env.execute("x")
        await env.reset()
        await env.execute("x = 1")
