"""Sandboxes that environments share: one that died is replaced."""

from __future__ import annotations

import asyncio
import os
import signal

from repl_env import AsyncLocalREPLEnv, LocalREPLEnv
from repl_env.sandboxes import Sandboxes, SandboxSettings, Source
from repl_sandbox import Limits

SETTINGS = SandboxSettings(limits=Limits(memory="256MiB"), recovery="restart")


def killed(sandboxes: Sandboxes):
    """The sandbox, whose template has been killed."""
    sandbox = sandboxes.get(SETTINGS)
    os.kill(sandbox._zygote.pid, signal.SIGKILL)
    sandbox._zygote._process.wait(20)
    return sandbox


def test_a_reset_after_its_sandbox_died_begins_in_another() -> None:
    sandboxes = Sandboxes()
    with LocalREPLEnv() as env:
        env._env.take_from(Source(None, SETTINGS, sandboxes))
        env.reset()
        before = killed(sandboxes)
        env.reset(context="abc")
        assert env.execute("context").observation.result.value == "'abc'"
        assert sandboxes.get(SETTINGS) is not before
    sandboxes.close()
    assert sandboxes.running(SETTINGS) is None


async def test_the_same_for_an_event_loop() -> None:
    sandboxes = Sandboxes()
    env = AsyncLocalREPLEnv()
    env._env.take_from(Source(None, SETTINGS, sandboxes))
    await env.reset()
    await asyncio.to_thread(killed, sandboxes)
    await env.reset(context="abc")
    assert (await env.execute("context")).observation.result.value == "'abc'"
    await env.close()
    await asyncio.to_thread(sandboxes.close)
