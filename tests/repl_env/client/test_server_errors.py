"""Errors that a server sends, limits on sizes, and arguments that the client refuses."""

from __future__ import annotations

import pytest

from repl_env import EpisodeAborted, EpisodeDone, NotReset, REPLAction
from repl_env.client import protocol
from repl_env.client.client import REPLEnv
from repl_env.client.protocol import CODES
from repl_env.errors import (
    AuthenticationFailed,
    CapacityReached,
    InvalidRequest,
    QuotaExceeded,
    REPLError,
    ServerError,
    ServerUnavailable,
    TooLarge,
)
from tests.repl_env.client.scripted_server import Scripted, begun, observation
from tests.repl_env.client.server_stories import after_the_request, printed


def test_every_code_has_its_error():
    assert {*protocol.AS_LOCALLY, *protocol.ERRORS} == {*CODES}
    assert not {*protocol.AS_LOCALLY} & {*protocol.ERRORS}


@pytest.mark.parametrize("code", sorted(protocol.ERRORS))
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
    assert type(error) is protocol.ERRORS[code]
    assert (error.code, error.id, error.retry_after) == (code, "log1", 2.0)
    assert error.details == {"sessions": 3}
    assert isinstance(error, REPLError) and isinstance(error, RuntimeError)


NASTY = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e"


@pytest.mark.parametrize("code", ["EXECUTION_ERROR", "EPISODE_ABORTED", NASTY])
async def test_a_refusal_cannot_steer_the_terminal(code):
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


async def test_a_long_error_message_is_clipped_and_searched_in_bounded_time():
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


async def test_errors_of_remote_episodes_equal_those_of_local_ones():
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
async def test_invalid_arguments_are_refused_by_the_client(call, error):
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset()
            with pytest.raises(error):
                await call(env)
            await env.step(REPLAction(code="x"))

    assert server.kinds == ["open", "reset", "step", "close"]
