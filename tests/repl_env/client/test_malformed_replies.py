"""Replies of a server that are malformed, too large or repeated."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from repl_env.client.client import REPLEnv
from repl_env.errors import BadReply, QuotaExceeded, ServerUnavailable
from tests.repl_env.client.scripted_server import Scripted, begun, observation
from tests.repl_env.client.server_stories import printed, resumed_to_the_end

# ── replies that are none ────────────────────────────────────────────────────────────────────────

RESULT = json.dumps(observation())


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x01",
        "not JSON",
        "[1, 2]",
        "[" * 100_000,
        '{"id": "ID", "data": {}}',
        '{"type": 7, "id": "ID", "data": {}}',
        '{"type": "observation", "id": "ID", "data": [1]}',
        '{"type": "observation", "id": 7, "data": {}}',
        f'{{"type": "observation", "data": {RESULT}}}',
        f'{{"type": "observation", "id": "never asked", "data": {RESULT}}}',
        '{"type": "state", "id": "ID", "data": {}}',
        '{"type": "output", "id": "ID", "data": {"stream": "stdin", "text": "x"}}',
        '{"type": "output", "id": "ID", "data": {"stream": "stdout", "text": 7}}',
        '{"type": "output", "id": "ID", "data": {"stream": ["stdout"], "text": "x"}}',
    ],
    ids=range(14),
)
async def test_a_malformed_reply_is_an_error_and_the_session_goes_on(answer):
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        is_text = isinstance(answer, str)
        await peer.send(answer.replace("ID", request["id"]) if is_text else answer)
        await peer.gone()

    async def resumed(peer):
        assert (await peer.session())["type"] == "resume"
        await peer.serve("the next")

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(BadReply):
                await env.execute("x")
            assert await printed(env) == "the next"


@pytest.mark.parametrize("after", ["1e999", "NaN", "-1", "true", '"1"', "9" * 4000])
@pytest.mark.parametrize("errors", ["[]", '[{"loc": [' + "[" * 500 + "]" * 500 + '], "msg": "x"}]'])
async def test_invalid_fields_of_a_refusal_are_ignored(after, errors):
    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        fields = f'"code": "QUOTA_EXCEEDED", "message": "no", "retry_after": {after}'
        data = f'{{{fields}, "errors": {errors}}}'
        await peer.send(f'{{"type": "error", "id": "{request["id"]}", "data": {data}}}')
        await peer.serve("the next")

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(QuotaExceeded, match="no") as caught:
                await env.execute("x")
            assert caught.value.retry_after in (None, 1.0)
            assert await printed(env) == "the next"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"observation": None},
        {"observation": {"result": {"stdout": 7}}},
        {"observation": {"result": {}}, "reward": "much"},
        {"observation": {"result": {}}, "done": "perhaps"},
        {"observation": {"iteration": 1}},
    ],
)
async def test_a_result_of_another_form_is_an_error_that_names_the_field(data):
    async def story(peer):
        await begun(peer)
        await peer.reply(await peer.next("step"), data)
        await peer.serve()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(BadReply, match=r"result|observation|reward|done"):
                await env.execute("x")
            await env.execute("x")


async def test_pings_of_a_server_that_reads_no_pongs_do_not_fill_the_memory():
    async def story(peer):
        await begun(peer, limits={"timeout_s": 3600})
        transport = peer.connection.transport
        transport.pause_reading()
        while not transport.is_closing():
            transport.write((b"\x89\x7d" + b"#" * 125) * 1000)
            with suppress(ConnectionError):
                await peer.connection.drain()
            await asyncio.sleep(0)

    with Scripted(story, resumed_to_the_end) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            await env.reset()
            assert await asyncio.wait_for(printed(env), 60) == "the result"


async def test_a_result_of_too_many_wrong_values_is_an_error_before_they_are_looked_at():
    names = [None] * 1_000_000  # each of which would become an error of its own

    async def story(peer):
        await begun(peer)
        await peer.reply(await peer.next("state"), {"namespace_keys": names})
        result = {"observation": {"result": {"changes": [dict.fromkeys(map(str, range(200_000)))]}}}
        await peer.reply(await peer.next("step"), result)
        await peer.serve("the next")

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(BadReply, match="over 100,000 values"):
                await env.state()
            with pytest.raises(BadReply, match="over 100,000 values"):
                await env.execute("x")
            assert await printed(env) == "the next"


async def test_a_frame_of_too_many_values_is_an_error_before_it_is_read():
    many = "[" + "[]," * 2_000_000 + "[]]"

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        head = f'"type": "observation", "id": "{request["id"]}"'
        await peer.send(f'{{{head}, "data": {{"metadata": {{"a": {many}}}}}}}')

    text = ',[{"\\' * 500_000

    async def resumed(peer):
        await peer.session()
        await peer.serve(text)

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(BadReply, match="over 1,048,576 values"):
                await env.execute("x")
            assert await printed(env) == text


async def test_a_lone_surrogate_from_a_server_is_a_question_mark():
    heard = []

    async def story(peer):
        await begun(peer)
        request = await peer.next("step")
        await peer.output(request, "a\ud800b")
        await peer.reply(request, observation("a\ud800b \U0001f600", kept="\udfff"))
        await peer.refuse(await peer.next("step"), "QUOTA_EXCEEDED", message="a\ud800b")
        await peer.serve()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            result = await env.execute("x", on_output=lambda _, text: heard.append(text))
            with pytest.raises(QuotaExceeded, match=r"a\?b"):
                await env.execute("y")

    assert heard == ["a?b"]
    assert result.observation.result.stdout == "a?b \U0001f600"
    assert result.metadata["kept"] == "?"


async def test_repeated_replies_are_handled_once():
    async def story(peer):
        await begun(peer)
        for text in ("one", "two"):
            request = await peer.next("step")
            await peer.reply(request, observation(text))
            await peer.output(request, "late")
            await peer.reply(request, observation(text))
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert [await printed(env), await printed(env)] == ["one", "two"]


@pytest.mark.parametrize("first", ["nothing", "a state", "no token", "garbage"])
async def test_a_server_that_gives_no_session_is_an_error(first):
    async def story(peer):
        request = await peer.next("open")
        if first == "a state":
            await peer.send({"type": "state", "id": request["id"], "data": {}})
        if first == "no token":
            await peer.reply(request, {"session_id": "s1", "grace_s": 1})
        if first == "garbage":
            await peer.send("{")
        await peer.close()

    with Scripted(story) as server:
        with pytest.raises(ServerUnavailable if first == "nothing" else BadReply):
            await REPLEnv(server.url).connect()
