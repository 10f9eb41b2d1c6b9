"""`REPLEnv` and a server that knows OpenEnv's frames alone: no ids, no resuming."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from repl_env import LLM
from repl_env.client.client import REPLEnv
from repl_env.errors import (
    BadReply,
    CapacityReached,
    NotSupported,
    ReplyTimeout,
    SessionLost,
    TooLarge,
)
from tests.repl_env.client.scripted_server import Scripted, observation


async def plain(peer):
    await peer.serve("the result")


async def test_only_openenv_s_frames_are_sent():
    async def story(peer):
        await peer.reply(await peer.next("reset"), observation())
        await peer.reply(await peer.next("step"), observation("hi"))
        await peer.reply(await peer.next("step"), observation(done=True))
        state = {"episode_id": "e", "step_count": 2, "namespace_keys": ["a"], "their own": 1}
        await peer.reply(await peer.next("state"), state)
        await peer.reply(await peer.next("state"), state)
        await peer.gone()

    with Scripted(story, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset(context="abc", seed=3)
            result = await env.execute("x = 1")
            await env.submit_final_answer("6")
            state = await env.state()
            names = await env.list_variables()

    assert server.frames == [
        {"type": "reset", "data": {"context": "abc", "seed": 3}},
        {"type": "step", "data": {"code": "x = 1"}},
        {"type": "step", "data": {"code": "", "is_final": True, "final_answer": "6"}},
        {"type": "state"},
        {"type": "state"},
    ]
    assert result.observation.result.stdout == "hi"
    assert (state.episode_id, state.step_count, names) == ("e", 2, ["a"])
    assert env.session_id is None


async def test_a_large_context_is_sent_inside_the_frame(tmp_path: Path):
    text = "x" * (3 << 20)
    (tmp_path / "text").write_text(text)
    with Scripted(plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset(context=text)
            await env.reset(context=tmp_path / "text")
            await env.reset(context=["x"])

    sent = [frame["data"]["context"] for frame in server.frames if frame["type"] == "reset"]
    assert sent == [text, text, ["x"]]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"contexts": {"a": "b"}}, "contexts"),
        ({"files": {"a": "b"}}, "files"),
        ({"llm": LLM(model="m")}, "llm"),
        ({"answer_schema": {"type": "string"}}, "answer_schema"),
        ({"context": b"abc"}, "bytes"),
    ],
)
async def test_arguments_that_openenv_would_drop_silently_are_refused(arguments, name):
    with Scripted(plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            with pytest.raises(NotSupported, match=name):
                await env.reset(**arguments)


async def test_requests_that_openenv_does_not_have_are_refused():
    with Scripted(plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            for ask in (
                env.execute("x", timeout_s=5),
                env.follow_up(task_prompt="more"),
                env.draft(),
                env.branch(),
            ):
                with pytest.raises(NotSupported):
                    await ask

    assert server.kinds == ["reset", "close"]


async def test_output_arrives_after_the_step():
    heard = []
    with Scripted(plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await env.execute("x", on_output=lambda *told: heard.append(told))

    assert heard == [("stdout", "the result")]


async def test_a_late_reply_is_not_taken_for_the_next_one(clock):
    """OpenEnv's client would drop the socket here, and with it the session and its variables."""
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def story(peer):
        await peer.reply(await peer.next("reset"), observation())
        for text in ("late", "in time"):
            request = await peer.next("step")
            if text == "late":
                await clock.forward_from_afar(70)
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go.wait(), loop))
            await peer.reply(request, observation(text))
        await peer.gone()

    with Scripted(story, plain=True) as server:
        async with REPLEnv(server.url, message_timeout_s=60, ping_s=None) as env:
            await env.reset()
            with pytest.raises(ReplyTimeout):
                await env.execute("x")
            second = asyncio.create_task(env.execute("x"))
            await asyncio.sleep(0)  # it waits for its turn, and is never sent
            clock.forward(70)
            with pytest.raises(ReplyTimeout):
                await second
            go.set()
            result = await env.execute("y")

    assert result.observation.result.stdout == "in time"
    assert len(server.handshakes) == 1


async def test_a_connection_that_breaks_is_a_session_lost_and_no_other_is_begun():
    async def story(peer):
        await peer.reply(await peer.next("reset"), observation())
        await peer.next("step")
        peer.drop()

    with Scripted(story, plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            for _ in range(2):
                with pytest.raises(SessionLost):
                    await env.execute("x")
            assert len(server.handshakes) == 1
            await env.reset()
            assert (await env.execute("x")).observation.result.stdout == "the result"

    assert len(server.handshakes) == 2


async def test_a_reset_on_a_connection_that_broke_begins_a_session():
    async def story(peer):
        await peer.reply(await peer.next("reset"), observation())
        peer.drop()

    with Scripted(story, plain, plain=True) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await env.reset()

    assert len(server.handshakes) == 2


async def test_a_server_at_capacity_says_so():
    """OpenEnv's server says it before it was asked for anything, and closes."""

    async def story(peer):
        await peer.refuse(None, "CAPACITY_REACHED", active_sessions=4, max_sessions=4)
        await peer.close(1000)

    with Scripted(story, plain=True) as server:
        with pytest.raises(CapacityReached) as caught:
            await REPLEnv(server.url).reset()

    assert caught.value.details == {"active_sessions": 4, "max_sessions": 4}


async def test_a_message_that_is_too_large_for_the_server_names_the_limits():
    with Scripted(plain, plain=True, max_size=1 << 20) as server:
        env = REPLEnv(server.url, max_message_size_mb=3)
        with pytest.raises(TooLarge, match="3,145,728"):
            await env.reset(context="x" * (3 << 20))
        with pytest.raises(TooLarge, match=r"2,\d{3},\d{3} bytes"):
            await env.reset(context="x" * (2 << 20))
        await env.close()


async def test_a_malformed_reply_ends_the_session():
    async def story(peer):
        await peer.next("reset")
        await peer.send("{")
        await peer.gone()

    with Scripted(story, plain=True) as server:
        async with REPLEnv(server.url) as env:
            with pytest.raises(BadReply):
                await env.reset()
            with pytest.raises(SessionLost):
                await env.state()
