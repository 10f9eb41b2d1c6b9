"""Requests and results of `REPLEnv`, calls at the same time, and branches."""

from __future__ import annotations

import asyncio

import numpy

from repl_env.client.client import REPLEnv
from tests.repl_env.client.scripted_server import Scripted, begun, observation
from tests.repl_env.client.server_stories import printed


async def test_numpy_numbers_are_sent_as_json_numbers():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset(seed=numpy.int64(7), max_iterations=numpy.int16(9))
            await env.execute("x = 1", timeout_s=numpy.float32(5))
    _, reset, step, _ = server.frames
    assert reset["data"] == {"seed": 7, "max_iterations": 9}
    assert step["timeout_s"] == 5


async def test_requests_have_the_given_arguments_and_no_others():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset(context="abc", seed=7, task_prompt="count")
            await env.execute("x = 1", timeout_s=5)
            await env.submit_final_answer({})

    for frame in server.frames:
        assert 1 <= len(frame.pop("id")) <= 64
    assert server.frames == [
        {"type": "open", "data": {}},
        {"type": "reset", "data": {"context": "abc", "seed": 7, "task_prompt": "count"}},
        {"type": "step", "data": {"code": "x = 1"}, "timeout_s": 5},
        {"type": "step", "data": {"code": "", "is_final": True, "final_answer": {}}},
        {"type": "close"},
    ]


async def test_a_result_has_the_fields_of_the_reply():
    async def story(peer):
        await begun(peer)
        data = observation("hi", done=True, error_kind="timeout") | {"reward": 0.5}
        data["observation"]["not yet invented"] = 1
        await peer.reply(await peer.next("step"), data)
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            result = await env.execute("x")

    assert (result.reward, result.done) == (0.5, True)
    assert result.observation.result.stdout == "hi"
    assert result.metadata == {"error_kind": "timeout"}
    assert result.observation.error_kind == "timeout"


async def test_a_policy_s_text_that_is_no_valid_unicode_arrives_with_question_marks():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            await env.execute("x = '\ud800 é'")

    assert server.frames[2]["data"]["code"] == "x = '? é'"


async def test_concurrent_calls_are_made_one_after_the_other():
    async def story(peer):
        await begun(peer)
        for number in range(3):
            request = await peer.next("step")
            await peer.reply(request, observation(f"{number}: {request['data']['code']}"))
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            texts = await asyncio.gather(*(printed(env, code) for code in "abc"))

    assert texts == ["0: a", "1: b", "2: c"]


async def test_a_branch_is_a_client_of_its_own_session():
    async def branch(peer):
        assert (await peer.session())["data"] == {"token": "t2"}
        await peer.serve("of the branch")

    async def story(peer):
        await begun(peer)
        request = await peer.next("branch")
        assert request["data"] == {"seed": 3}
        await peer.reply(request, {"session_id": "s2", "token": "t2"})
        await peer.serve("of the trunk")

    with Scripted(story, branch) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            async with await env.branch(seed=3) as other:
                assert await printed(other) == "of the branch"
            assert await printed(env) == "of the trunk"


async def test_a_branch_whose_first_connection_breaks_is_resumed_by_another():
    async def broken(peer):
        await peer.next("resume")
        peer.drop()

    async def branch(peer):
        assert (await peer.session())["data"] == {"token": "t2"}
        await peer.serve("of the branch")

    async def story(peer):
        await begun(peer)
        await peer.reply(await peer.next("branch"), {"session_id": "s2", "token": "t2"})
        await peer.gone()

    with Scripted(story, broken, branch) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            async with await env.branch() as other:
                assert await printed(other) == "of the branch"
