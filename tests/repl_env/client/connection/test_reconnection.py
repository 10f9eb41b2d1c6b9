"""`REPLEnv` whose connection breaks: the session is resumed, or lost with a reason."""

from __future__ import annotations

import asyncio
import threading

import pytest

from repl_env.client import connection, protocol
from repl_env.client.client import REPLEnv
from repl_env.errors import BadReply, ReplyTimeout, SessionLost
from tests.repl_env.client.scripted_server import Scripted, begun, kept_port, observation, served
from tests.repl_env.client.server_stories import (
    after_the_request,
    before_the_request,
    printed,
    resumed_to_the_end,
)


async def amid_output(peer):
    await begun(peer)
    await peer.output(await peer.next("step"), "some")
    peer.drop()


async def amid_a_frame(peer):
    await begun(peer)
    await peer.next("step")
    peer.connection.transport.write(b"\x81\x7e\x01")
    peer.drop()


async def closed_by_a_proxy(peer):
    await begun(peer)
    await peer.next("step")
    await peer.close(1001, "going away")


@pytest.mark.parametrize(
    "story",
    [before_the_request, after_the_request, amid_output, amid_a_frame, closed_by_a_proxy],
    ids=lambda story: story.__name__,
)
async def test_a_step_on_a_connection_that_breaks_has_its_result_once(story):
    steps = []

    async def resumed(peer):
        assert (await peer.session())["data"] == {"token": "t1"}
        steps.append(await peer.next("step"))
        await peer.reply(steps[-1], observation("the result"))
        steps.append(await peer.next())

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert await printed(env) == "the result"

    sent = [frame for frame in server.frames if frame["type"] == "step"]
    assert len({frame["id"] for frame in sent}) == 1
    assert steps[1]["type"] == "close"


async def test_a_step_goes_on_over_several_connections():
    async def again(peer):
        await peer.session(running=server.frames[2]["id"])
        await peer.next("step")
        peer.drop()

    async def at_last(peer):
        await peer.session()
        await peer.serve("the result")

    with Scripted(after_the_request, *[again] * 7, at_last) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert await printed(env) == "the result"

    assert server.kinds.count("open") == 1
    assert server.kinds.count("resume") == 8


async def test_a_request_that_never_arrives_fails():
    async def again(peer):
        await peer.session()
        await peer.next()
        peer.drop()

    with Scripted(after_the_request, again) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(ReplyTimeout, match="lost the request 5 times"):
                await env.execute("x")

    assert server.kinds.count("step") == 5


async def test_a_client_waits_for_a_server_that_is_briefly_away():
    async def stopping(peer):
        peer.drop()

    async def resumed(peer):
        await peer.session()
        await peer.serve("the result")

    with kept_port() as port:
        with Scripted(after_the_request, stopping, port=port) as server:
            env = REPLEnv(server.url)
            await env.reset()
            step = asyncio.create_task(printed(env))
            await server.until("step")
        assert not step.done()
        with Scripted(resumed, port=port):
            assert await step == "the result"
            await env.close()


async def test_a_session_kept_without_a_time_limit_is_resumed():
    async def story(peer):
        await begun(peer, grace_s=None)
        await peer.next("step")
        peer.drop()

    async def stopping(peer):
        await peer.next("resume")
        peer.drop()

    async def resumed(peer):
        await peer.session(grace_s=None)
        await peer.serve("the result")

    with kept_port() as port:
        with Scripted(story, stopping, port=port) as server:
            env = REPLEnv(server.url)
            await env.reset()
            step = asyncio.create_task(printed(env))
            await server.until("resume")
        with Scripted(resumed, port=port):
            assert await step == "the result"
            await env.close()


async def test_after_the_grace_time_the_session_is_lost_until_a_reset():
    async def story(peer):
        await begun(peer, grace_s=0.05)
        await peer.next("step")
        peer.drop()

    with kept_port() as port:
        with Scripted(story, served, port=port) as server:
            env = REPLEnv(server.url)
            await env.reset()
        for _ in range(2):
            with pytest.raises(SessionLost, match=r"no way back to it within 0\.05 s"):
                await env.execute("x")
        with Scripted(port=port) as another:
            with pytest.raises(SessionLost):
                await env.execute("x")
            await env.reset()
            await env.execute("x")
            await env.close()

    assert another.kinds == ["open", "reset", "step", "close"]


async def test_an_unknown_session_is_lost_and_no_other_is_begun():
    async def restarted(peer):
        await peer.refuse(await peer.next("resume"), "UNKNOWN_SESSION")
        await peer.close(4404)

    with Scripted(after_the_request, restarted, served) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            for ask in (env.execute("x"), env.state(), env.list_variables(), env.draft()):
                with pytest.raises(SessionLost):
                    await ask
            assert server.kinds.count("open") == 1
            await env.reset()
            await env.execute("x")

    assert server.kinds[-4:] == ["open", "reset", "step", "close"]


async def test_a_request_is_not_made_in_another_session_than_its_own():
    async def another(peer):
        await peer.session(session_id="s2")
        await peer.serve()

    with Scripted(after_the_request, another) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(SessionLost, match="another session"):
                await env.execute("x")

    assert server.kinds == ["open", "reset", "step", "resume"]


@pytest.mark.parametrize("code", sorted(protocol.AS_LOCALLY))
async def test_a_session_refused_with_the_code_of_a_request_is_lost(code):
    async def refusing(peer):
        await peer.refuse(await peer.next("resume"), code, result=observation())
        await peer.gone()

    with Scripted(after_the_request, refusing) as server:
        env = REPLEnv(server.url)
        await env.reset()
        for kind in (BadReply, SessionLost):
            with pytest.raises(kind, match="refuses a session"):
                await env.execute("x")
        await env.close()


@pytest.mark.parametrize("code", sorted(protocol.AS_LOCALLY))
async def test_closing_a_session_refused_with_the_code_of_a_request_is_no_error(code):
    resumed = threading.Event()

    async def waiting(peer):
        await peer.next("resume")
        resumed.set()
        await peer.gone()

    async def refusing(peer):
        await peer.refuse(await peer.next("resume"), code, result=observation())
        await peer.gone()

    with Scripted(before_the_request, waiting, refusing) as server:
        env = REPLEnv(server.url)
        await env.reset()
        assert await asyncio.to_thread(resumed.wait, 60)
        await env.close()

    assert server.kinds == ["open", "reset", "resume", "resume"]


async def test_a_reset_in_a_session_that_is_lost_begins_another():
    async def restarted(peer):
        await peer.refuse(await peer.next("resume"), "UNKNOWN_SESSION")

    async def story(peer):
        await begun(peer)
        await peer.next("reset")
        peer.drop()

    with Scripted(story, restarted, served) as server:
        async with REPLEnv(server.url) as env:
            await env.reset(context="a")
            await env.reset(context="b")

    assert server.kinds == ["open", "reset", "reset", "resume", "open", "reset", "close"]
    assert server.frames[-2]["data"] == {"context": "b"}


async def test_a_session_whose_connection_breaks_between_requests_is_resumed_at_once():
    resumed = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def after(peer):
        await peer.session()
        loop.call_soon_threadsafe(resumed.set)
        await peer.serve("the result")

    with Scripted(before_the_request, after) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await asyncio.wait_for(resumed.wait(), 60)
            assert await printed(env) == "the result"


async def test_a_connection_that_breaks_at_once_is_retried_with_growing_pauses(
    monkeypatch,
):
    attempts, often = [], threading.Event()

    def pause(attempt):
        attempts.append(attempt)
        return 0.0

    async def again(peer):
        await peer.session()
        if server.kinds.count("resume") == 6:
            often.set()
        peer.drop()

    monkeypatch.setattr(connection, "LONGEST_PAUSE_S", 3600.0)  # no connection lasts for so long
    monkeypatch.setattr(connection, "pause", pause)
    with Scripted(before_the_request, again) as server:
        env = REPLEnv(server.url)
        await env.reset()
        assert await asyncio.to_thread(often.wait, 60)
        await env.close()

    assert attempts[:6] == [0, 1, 2, 3, 4, 5]


async def test_a_connection_that_had_worked_is_retried_at_once(monkeypatch):
    attempts = []

    def pause(attempt):
        attempts.append(attempt)
        return 0.0

    async def once(peer):
        await peer.session()
        await peer.reply(await peer.next("step"), observation("the result"))
        await peer.next("step")
        peer.drop()

    monkeypatch.setattr(connection, "LONGEST_PAUSE_S", 3600.0)
    monkeypatch.setattr(connection, "pause", pause)
    with Scripted(after_the_request, once, once, resumed_to_the_end) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            for _ in range(3):
                await env.execute("x")

    assert attempts == [0, 0, 0]


@pytest.mark.parametrize("code", list(protocol.CLOSES))
async def test_close_codes_that_end_a_session_say_why(code):
    async def story(peer):
        await begun(peer)
        await peer.next("step")
        await peer.close(code)

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            kind, message = protocol.CLOSES[code]
            with pytest.raises(kind, match=message):
                await env.execute("x")
            with pytest.raises(SessionLost, match=message):
                await env.execute("x")

    assert server.kinds == ["open", "reset", "step"]


async def test_a_session_past_its_idle_timeout_is_lost():
    async def story(peer):
        await begun(peer)
        await peer.close(4408)

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(SessionLost, match="idle"):
                await env.execute("x")
