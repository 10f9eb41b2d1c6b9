"""The time-out of a call is `timeout_s` or `timeout`, wherever one can be given."""

from __future__ import annotations

import asyncio
import re

import pytest

from repl_env import (
    AsyncLocalREPLEnv,
    LocalREPLEnv,
    LocalRLMRunner,
    Recorder,
    REPLAction,
    REPLEnv,
    REPLEnvironment,
    REPLVectorEnv,
)
from repl_env.rlm import RLM, ScriptedModel
from repl_sandbox import AsyncSandbox
from tests.server.conftest import serving

ENDLESS = "while True: pass"
ACTION = REPLAction(code=ENDLESS)


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


def in_loop(call):
    """`call(sandbox, server, **timeout)` of a coroutine function, for plain tests."""
    return lambda *given, **timeout: asyncio.run(call(*given, **timeout))


def plain(sandbox, server, **timeout):
    with LocalREPLEnv(sandbox=sandbox) as env:
        env.reset()
        return env.step(ACTION, **timeout).observation.error_kind


def executed(sandbox, server, **timeout):
    with LocalREPLEnv(sandbox=sandbox) as env:
        env.reset()
        return env.execute(ENDLESS, **timeout).observation.error_kind


def recorded(sandbox, server, **timeout):
    with LocalREPLEnv(sandbox=sandbox) as env:
        recorder = Recorder(env)
        recorder.reset()
        kind = recorder.execute(ENDLESS, **timeout).observation.error_kind
        assert recorder.recording.timeouts == tuple(timeout.values())
        return kind


def environment(sandbox, server, **timeout):
    env = REPLEnvironment(sandbox=sandbox)
    env.reset()
    try:
        return env.step(ACTION, **timeout).error_kind
    finally:
        env.close()


def vector(sandbox, server, **timeout):
    with REPLVectorEnv(1, sandbox=sandbox) as envs:
        envs.reset()
        return envs.step([ENDLESS], **timeout)[0].observation.error_kind


def remote(sandbox, server, **timeout):
    with REPLEnv(server.url).sync() as env:
        env.reset()
        return env.execute(ENDLESS, **timeout).observation.error_kind


@in_loop
async def awaited(sandbox, server, **timeout):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        return (await env.execute(ENDLESS, **timeout)).observation.error_kind


@in_loop
async def vector_awaited(sandbox, server, **timeout):
    async with REPLVectorEnv(1, sandbox=sandbox) as envs:
        await envs.areset()
        return (await envs.astep([ENDLESS], **timeout))[0].observation.error_kind


@in_loop
async def remote_awaited(sandbox, server, **timeout):
    async with REPLEnv(server.url) as env:
        await env.reset()
        return (await env.step(ACTION, **timeout)).observation.error_kind


def session(sandbox, server, **timeout):
    with sandbox.session() as session:
        return "timeout" if session.run(ENDLESS, **timeout).clock == "execution" else None


@in_loop
async def session_awaited(sandbox, server, **timeout):
    async with AsyncSandbox.of(sandbox).session() as session:
        outcome = await session.run(ENDLESS, **timeout)
        return "timeout" if outcome.clock == "execution" else None


def run(sandbox, server, **timeout):
    rlm = RLM(ScriptedModel([f"```repl\n{ENDLESS}\n```"] * 9), sandbox=sandbox)
    return rlm.run("?", **timeout).stop_reason


def openenv_run(sandbox, server, **timeout):
    runner = LocalRLMRunner(lambda messages: f"```repl\n{ENDLESS}\n```")
    answer = runner.run("", "?", **timeout).final_answer
    return re.search("timeout", answer)[0]


CALLS = [
    plain,
    executed,
    recorded,
    environment,
    vector,
    remote,
    awaited,
    vector_awaited,
    remote_awaited,
    session,
    session_awaited,
    run,
    openenv_run,
]
NAMES = ["plain", "executed", "recorded", "environment", "vector", "remote", "awaited"]
NAMES += ["vector_awaited", "remote_awaited", "session", "session_awaited", "run", "openenv_run"]


@pytest.mark.parametrize("name", ["timeout", "timeout_s"])
@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_both_names_of_the_timeout_end_a_long_step(call, name, sandbox, server):
    assert call(sandbox, server, **{name: 0.2}) == "timeout"


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_both_names_are_a_type_error(call, sandbox, server):
    with pytest.raises(TypeError, match=r"timeout.* give one of them"):
        call(sandbox, server, timeout=1, timeout_s=1)


@pytest.mark.parametrize("name", ["timeout", "timeout_s"])
@pytest.mark.parametrize("call", CALLS, ids=NAMES)
@pytest.mark.parametrize(("value", "error"), [("5", TypeError), (0, ValueError)])
def test_an_invalid_timeout_is_refused_by_the_name_that_was_used(
    call, name, value, error, sandbox, server
):
    with pytest.raises(error, match=rf"\b{name} must be"):
        call(sandbox, server, **{name: value})
