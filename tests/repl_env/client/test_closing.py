"""Closing a `REPLEnv` in any state of its server."""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env.client.client import REPLEnv
from repl_env.errors import ServerUnavailable, SessionLost
from tests.repl_env.client.scripted_server import Scripted, begun, kept_port
from tests.repl_env.client.server_stories import before_the_request
from tests.repl_env.environment_internals import set_close_timeout


async def test_closing_while_a_step_runs_ends_the_step():
    async def story(peer):
        await begun(peer)
        await peer.next("step")
        await peer.gone()

    with Scripted(story) as server:
        env = REPLEnv(server.url)
        await env.reset()
        step = asyncio.create_task(env.execute("x"))
        await server.until("step")
        await env.close()
        with pytest.raises(SessionLost, match="closed"):
            await step


async def test_a_session_whose_opening_is_cancelled_ends_on_the_server():
    async def story(peer):
        await peer.next("open")
        await peer.next("close")

    with Scripted(story) as server:
        opening = asyncio.create_task(REPLEnv(server.url).connect())
        await server.until("open")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    assert server.kinds == ["open", "close"]


async def test_closing_without_a_connection_ends_the_session_on_the_server():
    async def resumed(peer):
        await peer.session()
        await peer.next("close")

    with Scripted(before_the_request, resumed) as server:
        env = REPLEnv(server.url)
        await env.reset()
        await env.close()

    assert server.kinds == ["open", "reset", "resume", "close"]


async def test_closing_while_a_step_is_resumed_leaves_no_connection():
    closed, left = threading.Event(), threading.Event()

    async def story(peer):
        await begun(peer)
        await peer.next("step")
        peer.drop()

    async def slow(peer):
        resume = await peer.next("resume")
        await asyncio.to_thread(closed.wait, 60)
        await peer.answer(resume)
        await peer.gone()
        left.set()

    async def farewell(peer):
        await peer.session()
        await peer.next("close")
        closed.set()

    with Scripted(story, slow, farewell) as server:
        env = REPLEnv(server.url)
        await env.reset()
        step = asyncio.create_task(env.execute("x"))
        await server.until("resume")
        await env.close()
        with pytest.raises(SessionLost, match=r"closed.*; reset\(\) begins another session$"):
            await asyncio.wait_for(step, 60)
        assert await asyncio.to_thread(left.wait, 60)

    assert server.kinds.count("step") == 1


async def test_closing_ends_though_the_server_has_stopped_reading(monkeypatch):
    set_close_timeout(monkeypatch, 0.05)
    closed = threading.Event()

    async def story(peer):
        await begun(peer, limits={"message_bytes": 1 << 26})
        peer.connection.transport.pause_reading()
        await asyncio.to_thread(closed.wait, 60)
        peer.drop()

    async def farewell(peer):
        await peer.session()
        await peer.next("close")

    with Scripted(story, farewell) as server:
        env = REPLEnv(server.url, ping_s=None)
        await env.reset()
        step = asyncio.create_task(env.execute("x" * 30_000_000))
        await asyncio.sleep(0)  # until it is being sent
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await asyncio.wait_for(env.close(), 60)
        closed.set()

    assert server.kinds == ["open", "reset", "resume", "close"]


async def test_closing_without_a_server_is_no_error():
    with kept_port() as port:
        with Scripted(port=port) as server:
            env = REPLEnv(server.url)
            await env.reset()
        await env.close()


async def test_a_reset_that_is_closed_begins_no_other_session():
    async def story(peer):
        await peer.session()
        await peer.next("reset")
        await peer.gone()

    with Scripted(story) as server:
        env = REPLEnv(server.url)
        reset = asyncio.create_task(env.reset())
        await server.until("reset")
        await env.close()
        with pytest.raises(SessionLost, match="closed"):
            await reset

    assert server.kinds.count("open") == 1


async def test_calls_at_the_same_time_open_one_session():
    with Scripted() as server:
        env = REPLEnv(server.url)
        await asyncio.gather(env.connect(), env.reset(), env.reset())
        await env.close()

    assert server.kinds.count("open") == 1


async def test_an_address_that_is_too_long_is_an_error():
    async def story(peer):
        await peer.next("open")
        await peer.gone()

    with Scripted(story) as server:
        with pytest.raises(ServerUnavailable, match=r"no session within 0\.05 s"):
            await REPLEnv(server.url, message_timeout_s=0.05).connect()
