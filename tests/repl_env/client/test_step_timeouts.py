"""Steps that take long, that are cancelled, and servers that send nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env.client import session
from repl_env.client.client import REPLEnv
from repl_env.errors import ReplyTimeout
from tests.repl_env.client.scripted_server import Scripted, begun, observation
from tests.repl_env.client.server_stories import after_the_request, printed


async def cancel_once(server, frame, env):
    """Cancel the first step as soon as the server has had `frame`."""
    await env.reset()
    step = asyncio.create_task(env.execute("x"))
    await server.until(frame)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_time_out_ends_the_step_and_keeps_the_session(clock):
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await clock.forward_from_afar(70)
        cancel = await peer.next("cancel")
        assert cancel["data"] == {"request": request["id"]}
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": True}})
        await peer.reply(request, observation("too late"))
        await peer.serve("in time")

    with Scripted(story) as server:
        async with REPLEnv(server.url, message_timeout_s=60.5, ping_s=None) as env:
            await env.reset()
            with pytest.raises(ReplyTimeout, match=r"60\.5 s") as caught:
                await env.execute("x")
            assert isinstance(caught.value, TimeoutError)
            assert await printed(env) == "in time"

    assert server.kinds.count("open") == 1


# Longer than a reply takes that is no time out: what a step has (LIMITS), and the margin.
LONG_S = 30 + session.MARGIN_S + 1


async def test_a_long_step_is_queried_and_waited_for(clock):
    async def working(peer):
        await peer.next("step")
        await clock.forward_from_afar(LONG_S)
        await peer.gone()

    async def story(peer):
        await begun(peer)
        await working(peer)

    async def still(peer):
        await peer.session(running=server.frames[2]["id"])
        await working(peer)

    async def at_last(peer):
        await peer.session(running=server.frames[2]["id"])
        await peer.serve("the result")

    with Scripted(story, *[still] * 6, at_last) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            await env.reset()
            assert await printed(env) == "the result"

    assert server.kinds.count("resume") == 7


async def test_a_silent_server_without_a_pending_request_is_an_error(clock):
    async def story(peer):
        await peer.session()
        while (await peer.next())["type"] == "reset":
            await clock.forward_from_afar(LONG_S)

    with Scripted(story) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            with pytest.raises(ReplyTimeout):
                await env.reset()

    assert server.kinds.count("reset") == session.MAX_SENDS


async def test_output_shows_that_a_step_is_running(clock):
    heard = threading.Semaphore(0)

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        for _ in range(6):
            await peer.output(request, ".")
            assert await asyncio.to_thread(heard.acquire, timeout=60)
            await clock.forward_from_afar(LONG_S / 2)
        await peer.reply(request, observation("the result"))
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            await env.reset()
            await env.execute("x", on_output=lambda stream, text: heard.release())

    assert "resume" not in server.kinds


async def test_cancelling_a_step_cancels_it_on_the_server():
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        cancel = await peer.next("cancel")
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": True}})
        await peer.output(request, "last words")
        await peer.reply(request, observation("of the cancelled"))
        await peer.serve("of the next")

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await cancel_once(server, "step", env)
            assert await printed(env) == "of the next"


async def test_a_step_that_is_cancelled_without_a_connection_is_cancelled_on_the_next_one():
    async def story(peer):
        await begun(peer)
        await peer.next("step")
        peer.drop()

    async def refused(peer):
        await peer.refuse(await peer.next("resume"), "CAPACITY_REACHED", retry_after=0.05)
        await peer.close()

    cancelled = threading.Event()

    async def resumed(peer):
        resume, name = await peer.next("resume"), server.frames[2]["id"]
        assert await asyncio.to_thread(cancelled.wait, 60)
        await peer.answer(resume, running=name)
        cancel = await peer.next("cancel")
        assert cancel["data"] == {"request": name}
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": True}})
        await peer.serve("of the next")

    with Scripted(story, refused, resumed) as server:
        async with REPLEnv(server.url, message_timeout_s=60) as env:
            await cancel_once(server, "resume", env)
            cancelled.set()
            assert await printed(env) == "of the next"


async def test_a_cancel_whose_connection_breaks_is_sent_again():
    async def story(peer):
        await begun(peer)
        await peer.next("step")
        await peer.next("cancel")
        peer.drop()

    async def resumed(peer):
        await peer.session(running=server.frames[2]["id"])
        cancel = await peer.next("cancel")
        await peer.send({"type": "cancelled", "id": cancel["id"], "data": {"running": True}})
        await peer.serve("of the next")

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url, message_timeout_s=60) as env:
            await cancel_once(server, "step", env)
            assert await printed(env) == "of the next"


async def test_a_request_that_waits_behind_another_is_not_lost():
    async def busy(peer):
        await peer.session(running="of another")
        await peer.next("step")
        peer.drop()

    async def at_last(peer):
        await peer.session()
        await peer.serve("the result")

    stories = [after_the_request, *[busy] * (session.MAX_SENDS + 1), at_last]
    with Scripted(*stories) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert await printed(env) == "the result"


async def test_a_step_that_the_server_does_not_end_is_abandoned_with_its_connection(monkeypatch):
    monkeypatch.setattr(session, "ABANDON_TIMEOUT_S", 0.05)

    async def story(peer):
        await begun(peer)
        await peer.next("step")
        await peer.next("cancel")
        await peer.gone()

    async def resumed(peer):
        await peer.session()
        await peer.serve("of the next")

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url, message_timeout_s=60) as env:
            await cancel_once(server, "step", env)
            assert await printed(env) == "of the next"
