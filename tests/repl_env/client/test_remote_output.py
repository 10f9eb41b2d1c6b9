"""Output of a running step, as `on_output` receives it, and errors of callbacks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env import ServerError, SessionLost
from repl_env.client.client import REPLEnv
from tests.repl_env.client.scripted_server import Scripted, begun, observation
from tests.repl_env.client.server_stories import printed


async def telling(peer):
    """A step that prints, is cancelled, and is followed by others."""
    await begun(peer)
    await peer.output(await peer.next("step"), "a")
    cancel = await peer.next("cancel")
    await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": False}})
    await peer.serve("the next")


async def test_output_comes_while_the_step_runs():
    heard, begun_to_hear = [], threading.Event()

    def hear(*told):
        heard.append(told)
        begun_to_hear.set()

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        assert request["stream"] is True
        await peer.output(request, "a")
        await asyncio.to_thread(begun_to_hear.wait, 60)
        await peer.output(request, "b", stream="stderr")
        await peer.output(request, "c", dropped=1234)
        await peer.reply(request, observation("all of it"))
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await env.execute("x", on_output=hear)

    left_out = ("stdout", "\n... (1,234 characters left out)\n")
    assert heard == [("stdout", "a"), ("stderr", "b"), ("stdout", "c"), left_out]


async def test_an_exception_of_a_callback_ends_the_step():
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await peer.output(request, "a")
        cancel = await peer.next("cancel")
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": False}})
        await peer.serve("the next")

    async def hear(stream, text):
        await asyncio.sleep(0)
        raise LookupError(text)

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(LookupError, match="a"):
                await env.execute("x", on_output=hear)
            assert await printed(env) == "the next"


async def test_an_error_of_a_server_that_a_callback_raises_ends_the_step_too():
    def hear(stream, text):
        raise ServerError("of another server")

    with Scripted(telling) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(ServerError, match="of another server"):
                await env.execute("x", on_output=hear)
            assert await printed(env) == "the next"


async def test_closing_after_a_callback_raised_does_not_hang():
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await peer.output(request, "a")
        await peer.output(request, "b")
        await peer.gone()

    others = []

    async def hear(stream, text):
        if others:
            raise LookupError(text)
        others.append(asyncio.create_task(env.execute("y")))
        await asyncio.sleep(0)

    with Scripted(story) as server:
        env = REPLEnv(server.url)
        await env.reset()
        try:
            await env.execute("x", on_output=hear)
        except LookupError:
            await env.close()
        with pytest.raises(SessionLost, match="closed"):
            await asyncio.wait_for(others[0], 60)


async def test_a_callback_that_calls_its_own_client_is_refused():
    async def hear(stream, text):
        await env.state()

    with Scripted(telling) as server:
        async with REPLEnv(server.url, message_timeout_s=60) as env:
            await env.reset()
            with pytest.raises(RuntimeError, match="on_output"):
                await env.execute("x", on_output=hear)
            assert await printed(env) == "the next"


async def test_a_slow_callback_is_not_taken_for_a_silent_server(clock):
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await peer.output(request, "a")
        await peer.reply(request, observation("the result"))
        await peer.gone()

    heard = []

    async def hear(stream, text):
        clock.forward(3600)
        await asyncio.sleep(0.01)  # whatever is due by now comes first
        heard.append(text)

    with Scripted(story) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            await env.reset()
            assert await printed(env, on_output=hear) == "the result"

    assert heard == ["a"]
    assert "resume" not in server.kinds
