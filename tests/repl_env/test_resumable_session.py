"""`REPLEnv` against servers that break off, repeat themselves, lie, or say nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress

import numpy
import pytest

from repl_env import EpisodeAborted, EpisodeDone, NotReset, REPLAction
from repl_env.client.async_client import REPLEnv
from repl_env.client.connection import reconnecting_socket, timeouts, websocket_client
from repl_env.client.protocol import refusal_errors
from repl_env.client.protocol.refusal_codes import CODES
from repl_env.client.session import resumable_session
from repl_env.errors import (
    AuthenticationFailed,
    BadReply,
    CapacityReached,
    InvalidRequest,
    QuotaExceeded,
    REPLError,
    ReplyTimeout,
    ServerError,
    ServerUnavailable,
    SessionLost,
    TooLarge,
)
from tests.repl_env.scripted_server import Scripted, begun, kept_port, observation, served


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(timeouts, "LONGEST_PAUSE_S", 0.01)


async def printed(env, code="print(1)", **options):
    return (await env.execute(code, **options)).observation.result.stdout


# ── what is said ─────────────────────────────────────────────────────────────────────────────────


async def cancel_once(server, frame, env):
    """Cancel the first step as soon as the server has had `frame`."""
    await env.reset()
    step = asyncio.create_task(env.execute("x"))
    await server.until(frame)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


async def test_numbers_of_numpys_are_sent_as_json_has_them():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset(seed=numpy.int64(7), max_iterations=numpy.int16(9))
            await env.execute("x = 1", timeout_s=numpy.float32(5))
    _, reset, step, _ = server.frames
    assert reset["data"] == {"seed": 7, "max_iterations": 9}
    assert step["timeout_s"] == 5


async def test_requests_say_what_was_asked_and_no_more():
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


async def test_a_result_has_what_the_server_said():
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


async def test_calls_at_the_same_time_are_made_one_after_the_other():
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


# ── connections that break ───────────────────────────────────────────────────────────────────────


async def resumed_to_the_end(peer):
    await peer.session()
    await peer.serve("the result")


async def before_the_request(peer):
    await begun(peer)
    peer.drop()


async def after_the_request(peer):
    await begun(peer)
    await peer.next("step")
    peer.drop()


async def amid_output(peer):
    await begun(peer)
    await peer.output(await peer.next("step"), "some")
    peer.drop()


async def amid_a_frame(peer):
    await begun(peer)
    await peer.next("step")
    peer._connection.transport.write(b"\x81\x7e\x01")
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


async def test_a_request_that_never_gets_there_is_given_up():
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


async def test_a_server_that_is_away_for_a_while_is_waited_for():
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


async def test_a_session_that_is_kept_without_an_end_is_gone_back_to():
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


async def test_a_session_that_the_server_does_not_know_is_lost_and_no_other_is_begun():
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


@pytest.mark.parametrize("code", sorted(refusal_errors.AS_LOCALLY))
async def test_a_session_that_is_refused_as_a_request_in_one_is_lost(code):
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


@pytest.mark.parametrize("code", sorted(refusal_errors.AS_LOCALLY))
async def test_closing_is_no_error_though_the_session_is_refused_as_a_request_in_one(code):
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


async def test_a_connection_that_breaks_as_soon_as_it_is_there_is_made_again_less_and_less_often(
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

    monkeypatch.setattr(
        reconnecting_socket, "LONGEST_PAUSE_S", 3600.0
    )  # no connection lasts for so long
    monkeypatch.setattr(reconnecting_socket, "pause", pause)
    with Scripted(before_the_request, again) as server:
        env = REPLEnv(server.url)
        await env.reset()
        assert await asyncio.to_thread(often.wait, 60)
        await env.close()

    assert attempts[:6] == [0, 1, 2, 3, 4, 5]


async def test_a_connection_that_was_of_use_is_made_again_at_once(monkeypatch):
    attempts = []

    def pause(attempt):
        attempts.append(attempt)
        return 0.0

    async def once(peer):
        await peer.session()
        await peer.reply(await peer.next("step"), observation("the result"))
        await peer.next("step")
        peer.drop()

    monkeypatch.setattr(reconnecting_socket, "LONGEST_PAUSE_S", 3600.0)
    monkeypatch.setattr(reconnecting_socket, "pause", pause)
    with Scripted(after_the_request, once, once, resumed_to_the_end) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            for _ in range(3):
                await env.execute("x")

    assert attempts == [0, 0, 0]


@pytest.mark.parametrize("code", list(refusal_errors.CLOSES))
async def test_close_codes_that_end_a_session_say_why(code):
    async def story(peer):
        await begun(peer)
        await peer.next("step")
        await peer.close(code)

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            kind, message = refusal_errors.CLOSES[code]
            with pytest.raises(kind, match=message):
                await env.execute("x")
            with pytest.raises(SessionLost, match=message):
                await env.execute("x")

    assert server.kinds == ["open", "reset", "step"]


async def test_a_session_that_was_idle_for_too_long_is_known_to_be_lost():
    async def story(peer):
        await begun(peer)
        await peer.close(4408)

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(SessionLost, match="idle"):
                await env.execute("x")


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


async def test_closing_while_a_step_comes_back_leaves_no_connection():
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


async def test_closing_ends_though_the_server_reads_nothing_any_more(monkeypatch):
    monkeypatch.setattr(websocket_client, "_CLOSE_S", 0.05)
    closed = threading.Event()

    async def story(peer):
        await begun(peer, limits={"message_bytes": 1 << 26})
        peer._connection.transport.pause_reading()
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


async def test_a_line_that_is_too_long_is_left():
    async def story(peer):
        await peer.next("open")
        await peer.gone()

    with Scripted(story) as server:
        with pytest.raises(ServerUnavailable, match=r"no session within 0\.05 s"):
            await REPLEnv(server.url, message_timeout_s=0.05).connect()


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
async def test_a_reply_that_is_none_is_an_error_and_the_session_goes_on(answer):
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
async def test_a_refusal_whose_fields_are_no_such_is_one_without_them(after, errors):
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
        transport = peer._connection.transport
        transport.pause_reading()
        while not transport.is_closing():
            transport.write((b"\x89\x7d" + b"#" * 125) * 1000)
            with suppress(ConnectionError):
                await peer._connection.drain()
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


async def test_half_a_character_from_a_server_is_a_question_mark():
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


async def test_replies_that_come_twice_are_heard_once():
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
LONG_S = 30 + resumable_session.MARGIN_S + 1


async def test_a_step_that_takes_long_is_asked_about_and_waited_for(clock):
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


async def test_a_server_that_says_nothing_and_works_on_nothing_is_given_up(clock):
    async def story(peer):
        await peer.session()
        while (await peer.next())["type"] == "reset":
            await clock.forward_from_afar(LONG_S)

    with Scripted(story) as server:
        async with REPLEnv(server.url, ping_s=None) as env:
            with pytest.raises(ReplyTimeout):
                await env.reset()

    assert server.kinds.count("reset") == resumable_session.MOST_SENDS


async def test_output_says_that_a_step_is_being_worked_on(clock):
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


async def test_whoever_cancels_a_step_has_it_cancelled_on_the_server():
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

    stories = [after_the_request, *[busy] * (resumable_session.MOST_SENDS + 1), at_last]
    with Scripted(*stories) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert await printed(env) == "the result"


async def test_a_step_that_the_server_does_not_end_is_left_behind_with_its_connection(monkeypatch):
    monkeypatch.setattr(resumable_session, "LEAVE_S", 0.05)

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


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_every_code_has_its_error():
    assert {*refusal_errors.AS_LOCALLY, *refusal_errors.ERRORS} == {*CODES}
    assert not {*refusal_errors.AS_LOCALLY} & {*refusal_errors.ERRORS}


@pytest.mark.parametrize("code", sorted(refusal_errors.ERRORS))
async def test_a_refusal_is_the_error_of_its_code(code):
    async def story(peer):
        await begun(peer)
        await peer.refuse(await peer.next("step"), code, retry_after=2, sessions=3)
        await peer.serve()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(ServerError, match=f"{code}: because {code}") as caught:
                await env.execute("x")

    error = caught.value
    assert type(error) is refusal_errors.ERRORS[code]
    assert (error.code, error.id, error.retry_after) == (code, "log1", 2.0)
    assert error.details == {"sessions": 3}
    assert isinstance(error, REPLError) and isinstance(error, RuntimeError)


NASTY = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e"


@pytest.mark.parametrize("code", ["EXECUTION_ERROR", "EPISODE_ABORTED", NASTY])
async def test_a_refusal_does_not_steer_the_terminal_that_it_is_shown_on(code):
    async def story(peer):
        await begun(peer)
        await peer.refuse(await peer.next("step"), code, message=f"no\n{NASTY}", id=NASTY)
        await peer.serve()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(REPLError, match="no\n") as caught:
                await env.execute("x")
    told = str(caught.value)
    assert "\\x1b[2J" in told
    assert not any(sign in told for sign in "\x1b\x07\r\x9b\u202e")


async def test_a_long_refusal_is_told_in_part_and_not_searched_for_long():
    async def story(peer):
        await begun(peer)
        errors = [{"loc": [["a"], {}], "msg": "no"}] * 50_000
        await peer.refuse(await peer.next("step"), "FORBIDDEN", message="x" * 10**6, errors=errors)
        await peer.serve("the next")

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(AuthenticationFailed) as caught:
                await env.execute("x")
            assert (len(str(caught.value)) < 11_000, caught.value.details) == (True, {})
            assert await printed(env) == "the next"


async def test_the_errors_of_an_episode_are_those_of_a_local_one():
    async def story(peer):
        await peer.session()
        await peer.refuse(await peer.next("step"), "NOT_RESET")
        last = observation("the last", done=True)
        await peer.refuse(await peer.next("step"), "EPISODE_DONE", result=last)
        message = "cancelled: by somebody"
        await peer.refuse(await peer.next("step"), "EPISODE_ABORTED", message=message)
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            with pytest.raises(NotReset):
                await env.execute("x")
            with pytest.raises(EpisodeDone) as done:
                await env.execute("x")
            with pytest.raises(EpisodeAborted, match=r"^cancelled: by somebody$") as aborted:
                await env.execute("x")

    assert done.value.result.observation.result.stdout == "the last"
    assert done.value.result.done
    assert aborted.value.kind == "cancelled"


async def test_a_wrong_field_is_named():
    errors = [{"loc": ["data", "max_iterations"], "msg": "too few", "input": "secret"}]

    async def story(peer):
        await peer.session()
        await peer.refuse(await peer.next("reset"), "VALIDATION_ERROR", errors=errors)
        await peer.gone()

    with Scripted(story) as server:
        async with REPLEnv(server.url) as env:
            with pytest.raises(InvalidRequest, match=r"data\.max_iterations: too few") as caught:
                await env.reset(max_iterations=-1)
            assert isinstance(caught.value, ValueError)
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("CAPACITY_REACHED", CapacityReached),
        ("QUOTA_EXCEEDED", QuotaExceeded),
        ("DRAINING", ServerUnavailable),
        ("UNAUTHENTICATED", AuthenticationFailed),
    ],
)
async def test_a_session_that_is_refused_is_the_error_of_its_code(code, kind):
    async def story(peer):
        await peer.refuse(None, code)
        await peer.close(CODES[code].close or 1000)

    with Scripted(story) as server:
        with pytest.raises(kind, match=code):
            await REPLEnv(server.url).connect()


async def test_a_server_that_is_full_when_a_session_is_resumed_is_asked_again():
    async def full(peer):
        await peer.refuse(await peer.next("resume"), "RATE_LIMITED", retry_after=0.01)
        await peer.close()

    async def resumed(peer):
        await peer.session()
        await peer.serve("the result")

    with Scripted(after_the_request, full, full, resumed) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            assert await printed(env) == "the result"


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_over_the_server_s_limit_is_not_sent():
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(TooLarge, match="1,048,576"):
                await env.execute("#" * (1 << 20))
            await env.execute("x")

    assert server.kinds == ["open", "reset", "step", "close"]


async def test_a_message_that_is_too_large_for_the_server_is_not_sent_again():
    async def story(peer):
        await begun(peer, limits={"message_bytes": None})
        await peer.next()

    async def resumed(peer):
        await peer.session()
        await peer.serve("the next")

    with Scripted(story, resumed, max_size=1 << 16) as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(TooLarge, match="the server takes no message of this size"):
                await env.execute("#" * (1 << 17))
            assert await printed(env) == "the next"


async def test_a_reply_over_the_client_s_limit_is_an_error_and_the_session_goes_on():
    async def story(peer):
        await begun(peer)
        await peer.reply(await peer.next("step"), observation("#" * (1 << 21)))
        await peer.gone()

    async def resumed(peer):
        await peer.session()
        await peer.serve("the next")

    with Scripted(story, resumed) as server:
        async with REPLEnv(server.url, max_message_size_mb=1) as env:
            await env.reset()
            with pytest.raises(TooLarge, match="max_message_size_mb"):
                await env.execute("x")
            assert await printed(env) == "the next"


# ── bad arguments ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda env: env.step("x = 1"), TypeError),
        (lambda env: env.execute(7.5j), TypeError),
        (lambda env: env.execute(None), TypeError),
        (lambda env: env.execute("x", timeout_s=0), ValueError),
        (lambda env: env.execute("x", timeout_s=float("nan")), ValueError),
        (lambda env: env.execute("x", timeout_s="5"), TypeError),
        (lambda env: env.submit_final_answer(float("inf")), ValueError),
        (lambda env: env.execute("x", on_output="print"), TypeError),
        (lambda env: env.get_variable("x; y"), ValueError),
        (lambda env: env.get_variable(7), TypeError),
        (lambda env: env.reset(on_upload="print"), TypeError),
        (lambda env: env.reset(contexts=["a"]), TypeError),
        (lambda env: env.reset(llm={"model": "m"}), TypeError),
        (lambda env: env.reset(context=7), TypeError),
        (lambda env: env.reset(context=[object()]), TypeError),
        (lambda env: env.reset(context={"x": float("nan")}), ValueError),
        (lambda env: env.reset(context="a", contexts={"context": "b"}), ValueError),
        (lambda env: env.reset(files="a"), TypeError),
        (lambda env: env.reset(files={"a": 7}), TypeError),
        (lambda env: env.reset(expected_answer=object()), TypeError),
        (lambda env: env.reset(answer_schema=object()), TypeError),
        (lambda env: env.follow_up(task_prompt="x", variables={"x": {1, 2}}), TypeError),
        (lambda env: env.follow_up(task_prompt="x", variables={"x": float("nan")}), ValueError),
        (lambda env: env.follow_up(task_prompt="x", variables=["x"]), TypeError),
        (lambda env: env.reset(context={1: 2, "1": 3}), ValueError),
        (lambda env: env.reset(context="\ud800"), ValueError),
        (lambda env: env.follow_up(task_prompt="\ud800"), ValueError),
    ],
)
async def test_what_cannot_be_sent_is_refused_here(call, error):
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(error):
                await call(env)
            await env.step(REPLAction(code="x"))

    assert server.kinds == ["open", "reset", "step", "close"]
