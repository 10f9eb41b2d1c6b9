"""A failure of an endpoint is a `ModelError` of a known kind: never text, and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import traceback
from email.utils import formatdate

import pytest

from repl_env.errors import ModelError
from repl_env.rlm import HFModel, ModelRequest, ModelUsage, OpenAIModel
from tests.repl_env.llm.endpoint import HTML, Cut, Drop, Hang, Raw, Reply, Status

ASK = ModelRequest(messages=[{"role": "user", "content": "how many"}])


def whole(base_url, **options):
    return OpenAIModel("m", base_url=base_url, **options)


def streamed(base_url, **options):
    return OpenAIModel("m", base_url=base_url, stream=True, **options)


def hugging_face(base_url, *, api_key=None, **options):
    return HFModel("m", base_url=base_url, token=api_key, **options)


@pytest.fixture(params=[whole, streamed, hugging_face])
def make(request):
    """Makes a model at an endpoint, of each kind that there is."""
    return request.param


async def answer(model, request=ASK):
    try:
        return await model.complete(request)
    finally:
        await model.close()


async def failure(model, request=ASK) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await answer(model, request)
    return raised.value


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(endpoint, make, status: int) -> None:
    """A redirect would send the question, and headers with keys, to a host that the user did not
    name.
    """
    elsewhere = endpoint("an answer")
    to = f"{elsewhere.base_url}/chat/completions"
    served = endpoint(Status(status, headers={"location": to}))
    error = await failure(make(served.base_url, api_key="k", headers={"X-Key": "secret"}))
    assert elsewhere.requests == []
    assert (error.kind, error.retryable) == ("not_found", False)
    assert f"status {status}: the endpoint redirects to {to}, which is not followed" in str(error)


STATUSES = [
    (400, "request", False),
    (401, "authentication", False),
    (402, "rate_limit", False),
    (403, "authentication", False),
    (404, "not_found", False),
    (407, "authentication", False),
    (408, "timeout", True),
    (409, "server", True),
    (413, "request", False),
    (422, "request", False),
    (429, "rate_limit", True),
    (500, "server", True),
    (503, "server", True),
    (529, "server", True),
]


@pytest.mark.parametrize(("code", "kind", "retryable"), STATUSES)
async def test_a_status_has_a_kind(endpoint, make, code, kind, retryable) -> None:
    served = endpoint(Status(code, {"error": {"message": "what\n went wrong"}}))
    error = await failure(make(served.base_url, max_retries=0))

    assert (error.kind, error.retryable) == (kind, retryable)
    assert error.message == f"status {code}: what went wrong"
    assert len(served.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (HTML, "status 500: a page of HTML"),
        ("", "status 500"),
        ("just text", "status 500: just text"),
        ({"message": "as vLLM says it", "code": 500}, "status 500: as vLLM says it"),
        ({"detail": "as FastAPI says it"}, "status 500: as FastAPI says it"),
        ({"error": "one text"}, "status 500: one text"),
        ({"error": {"message": ["no text"]}}, "status 500"),
    ],
)
async def test_a_body_of_an_error_may_be_anything(endpoint, make, body, message) -> None:
    error = await failure(make(endpoint(Status(500, body)).base_url, max_retries=0))

    assert (error.kind, error.message) == ("server", message)


async def test_a_message_is_valid_text(endpoint, make) -> None:
    """The text is shown to code in sessions, and the protocol is UTF-8."""
    served = endpoint(Status(400, {"error": {"message": "half \ud800 a pair"}}))

    assert (await failure(make(served.base_url))).message == "status 400: half ? a pair"


async def test_a_long_message_is_clipped(endpoint, make) -> None:
    served = endpoint(Status(400, {"error": {"message": "long " * 100_000}}))

    assert len((await failure(make(served.base_url))).message) < 400


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [("insufficient_quota", "rate_limit", 429), ("content_filter", "refused", 400)],
)
async def test_a_code_says_more_than_a_status(endpoint, make, code, kind, status) -> None:
    served = endpoint(Status(status, {"error": {"message": "no", "code": code}}))
    error = await failure(make(served.base_url, max_retries=0))

    assert (error.kind, error.retryable) == (kind, False)


async def test_transient_errors_are_retried(endpoint, make) -> None:
    soon = {"retry-after-ms": "5"}
    served = endpoint([Status(429, {}, soon), Status(503, HTML, soon), "yes"])

    assert (await answer(make(served.base_url))).text == "yes"
    assert len(served.requests) == 3


async def test_permanent_errors_are_not_retried(endpoint, make) -> None:
    served = endpoint([Status(404, {}), "yes"])
    await failure(make(served.base_url))

    assert len(served.requests) == 1


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ],
)
async def test_the_error_has_the_time_to_retry(endpoint, make, headers, seconds) -> None:
    error = await failure(make(endpoint(Status(429, {}, headers)).base_url, max_retries=0))

    assert error.retry_after == seconds


async def test_the_time_to_retry_may_be_a_date(endpoint, make) -> None:
    past = formatdate(0, usegmt=True)
    served = endpoint(Status(429, {}, {"retry-after": past}))

    assert (await failure(make(served.base_url, max_retries=0))).retry_after == 0


async def test_an_endpoint_s_retry_after_of_hours_is_an_error(endpoint) -> None:
    """Retried by this package; openai retries at once in some versions, and gives up in others."""
    served = endpoint([Status(429, {}, {"retry-after": "7200"}), "yes"])

    assert (await failure(hugging_face(served.base_url))).retry_after == 7200
    assert len(served.requests) == 1


@pytest.mark.parametrize("ending", [Cut(), Drop()])
async def test_a_broken_connection_is_a_connection_error(endpoint, make, ending) -> None:
    error = await failure(make(endpoint(ending).base_url, max_retries=0))

    assert (error.kind, error.retryable) == ("connection", True)


async def test_a_port_without_a_listener_is_an_error(make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        error = await failure(make(f"http://127.0.0.1:{port}/v1", max_retries=0))

    assert (error.kind, error.retryable) == ("connection", True)
    assert f"no connection to http://127.0.0.1:{port}/v1" in str(error)


async def test_a_stream_that_ends_early_is_no_answer(endpoint) -> None:
    """The connection ends well, but the model had not."""
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n'
    error = await failure(streamed(endpoint(Raw(event, "text/event-stream")).base_url))

    assert (error.kind, error.retryable) == ("connection", True)


async def test_each_attempt_has_a_timeout(endpoint, make) -> None:
    served = endpoint([Hang(), "yes"])

    assert (await answer(make(served.base_url, timeout=1.0, max_retries=5))).text == "yes"
    error = await failure(make(endpoint(Hang()).base_url, timeout=0.1, max_retries=0))
    assert (error.kind, error.retryable) == ("timeout", True)


async def test_all_attempts_of_a_request_share_a_timeout(endpoint, make) -> None:
    served = endpoint(Status(429, {}, {"retry-after": "60"}))
    request = ModelRequest(messages=ASK.messages, timeout=0.5)
    error = await failure(make(served.base_url), request)

    assert (error.kind, error.message) == ("timeout", "no answer within 0.5 s")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", HTML.encode(), b"[]", b'"text"', b"null", b"\xff\xfe", b"{}",
     b'{"choices": []}', b'{"choices": null}', b'{"choices": {"0": 1}}'],
)  # fmt: skip
async def test_a_malformed_completion_is_a_server_error(endpoint, body: bytes) -> None:
    for kind in ("application/json", "text/plain"):
        for make in (whole, hugging_face):
            error = await failure(make(endpoint(Raw(body, kind)).base_url, max_retries=0))
            assert (error.kind, error.retryable) == ("server", True)


@pytest.mark.parametrize("event", [b"{", b"\xff", b"[]", b"{}", b'{"choices": 1}'])
async def test_a_malformed_event_is_a_server_error(endpoint, event: bytes) -> None:
    body = Raw(b"data: " + event + b"\n\n", "text/event-stream")
    error = await failure(streamed(endpoint(body).base_url, max_retries=0))

    assert (error.kind, error.retryable) == ("server", True)


MALFORMED = [
    Raw(b'{"choices": []}'),
    Raw(b'{"choices": null}'),
    Raw(b'{"choices": [{"index": 0, "finish_reason": "stop"}]}'),
    Raw(b'{"error": {"code": 502}}'),
    Raw(b'{"error": {"message": "no upstream", "code": "502"}, "choices": null}'),
    Raw(b'{"choices": [{"error": {"message": "overloaded", "code": 503}}]}'),
    Raw(HTML.encode(), "text/html"),
    Raw(b'{"choices": [{"message": {"role": "assis'),
    Raw(b""),
    Reply("half", "error"),
    Cut(),
    Drop(),
]


@pytest.mark.parametrize("bad", MALFORMED)
async def test_a_malformed_completion_is_requested_again(endpoint, make, bad) -> None:
    """By every model, like a status: gateways answer 200 before the model behind them fails."""
    if isinstance(bad, Raw) and make is streamed:
        body = bad.body.replace(b'"stop"', b"null")
        bad = Raw(b"data: " + body + b"\n\n", "text/event-stream")
    served = endpoint([bad, "yes"])

    assert (await answer(make(served.base_url))).text == "yes"
    assert len(served.requests) == 2


async def test_a_malformed_completion_is_requested_again_so_often_and_no_more(
    endpoint, make
) -> None:
    served = endpoint([Reply("half", "error"), Reply("half", "error"), "yes"])
    error = await failure(make(served.base_url, max_retries=1))

    assert error.retryable
    assert len(served.requests) == 2


async def test_an_error_that_lasts_inside_a_success_is_not_requested_again(endpoint, make) -> None:
    said = {"error": {"message": "no such model", "code": 404}}
    body = Raw(json.dumps(said).encode())
    if make is streamed:
        body = Raw(b"data: " + body.body + b"\n\n", "text/event-stream")
    served = endpoint([body, "yes"])
    error = await failure(make(served.base_url))

    assert (error.kind, len(served.requests)) == ("not_found", 1)


async def test_the_usage_is_that_of_all_attempts(endpoint, make) -> None:
    failed = Reply("half", "error", usage={"prompt_tokens": 5, "completion_tokens": 2})
    good = Reply("yes", usage={"prompt_tokens": 5, "completion_tokens": 1})
    completion = await answer(make(endpoint([failed, Status(503), good]).base_url))
    assert completion.usage == ModelUsage(10, 3)
    error = await failure(make(endpoint(failed).base_url, max_retries=1))
    assert error.usage == ModelUsage(10, 4)


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NO_ANSWERS = [
    (Reply(None, message={"refusal": "I will not"}), "refused", "I will not"),
    (Reply(None, "content_filter"), "refused", "a filter withheld the answer"),
    (Reply("half", "error"), "server", "the model failed"),
    (Reply(None, message={"content": 42}), "type", "the answer is int, not text"),
]


@pytest.mark.parametrize(("reply", "kind", "message"), NO_ANSWERS)
async def test_a_completion_without_an_answer_is_an_error(
    endpoint, make, reply, kind, message
) -> None:
    error = await failure(make(endpoint(reply).base_url, max_retries=0))

    assert error.kind == kind
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(None),
        Reply(None, message={"reasoning_content": "I think so."}),
        Reply(None, message={"reasoning": "I think so.", "content": []}),
        Reply(None, "tool_calls", message={"tool_calls": [CALL]}),
        Reply("", "tool_calls", message={"tool_calls": [CALL]}),
        Reply(None, "function_call", message={"function_call": CALL["function"]}),
        Reply(None, "length"),
    ],
)
async def test_a_completion_without_content_is_an_empty_text(endpoint, make, reply) -> None:
    completion = await answer(make(endpoint(reply).base_url, max_retries=0))

    assert (completion.text, completion.finish_reason) == ("", reply.finish_reason)


async def test_a_refused_completion_keeps_its_usage(endpoint, make) -> None:
    reply = Reply(
        None, message={"refusal": "no"}, usage={"prompt_tokens": 5, "completion_tokens": 1}
    )
    error = await failure(make(endpoint(reply).base_url))

    assert (error.kind, error.usage) == ("refused", ModelUsage(5, 1))


async def test_an_error_in_the_body_of_a_success_is_an_error(endpoint) -> None:
    """Gateways send it if they had to answer before the model behind them failed."""
    said = {"error": {"message": "slow down", "code": 429}}
    for make in (whole, hugging_face):
        error = await failure(make(endpoint(Reply("", body=said)).base_url, max_retries=0))
        assert (error.kind, error.retryable) == ("rate_limit", True)


@pytest.mark.parametrize("code", ["9" * 5000, "-1", "\u0664\u0662\u0669" * 9, [429]])
async def test_a_code_inside_a_body_may_be_anything(endpoint, code) -> None:
    said = {"error": {"message": "no", "code": code}}
    for make in (whole, hugging_face):
        error = await failure(make(endpoint(Reply("", body=said)).base_url, max_retries=0))
        assert (error.kind, error.message) == ("server", "no")


async def test_nested_errors_are_one_error(endpoint, make) -> None:
    """However many: what cannot be read so deep would lead to a request with its headers."""
    for depth in (3, 500, 50_000):
        status = Status(400, '{"error":' * depth + '"deep"' + "}" * depth)
        error = await failure(make(endpoint(status).base_url, max_retries=0))
        assert depth > 3 or error.message == "status 400: deep"
        assert error.__context__ is None


async def test_an_error_inside_a_stream_is_an_error(endpoint) -> None:
    said = b'data: {"error": {"message": "the engine died", "code": 500}}\n\n'
    error = await failure(streamed(endpoint(Raw(said, "text/event-stream")).base_url))

    assert (error.kind, error.retryable) == ("server", True)
    assert "the engine died" in error.message


async def test_text_of_an_endpoint_does_not_steer_a_terminal(endpoint, make) -> None:
    said = {"error": {"message": "no \x1b[2J\x9b31m\u202e"}}
    error = await failure(make(endpoint(lambda asked: Status(400, said)).base_url))

    assert "no \\x1b[2J" in str(error)
    assert not any(sign in str(error) for sign in "\x1b\x9b\u202e")


KEY, HEADER = "sk-very-secret-0123456789", "session-secret-abcdef"


@pytest.mark.parametrize("code", [401, 400, 500])
async def test_no_secret_is_in_an_error(endpoint, make, caplog, code: int) -> None:
    """Secrets are not in the message, the traceback, the repr or a log, even if echoed."""

    def echo(asked):
        secrets = f"{asked.headers['authorization']} and {asked.headers['x-gate']}"
        return Status(code, {"error": {"message": f"not allowed: {secrets}"}})

    caplog.set_level(logging.DEBUG)
    served = endpoint(echo)
    model = make(served.base_url, api_key=KEY, headers={"X-Gate": HEADER}, max_retries=1)
    error = await failure(model)
    told = "".join([*traceback.format_exception(error), repr(model), repr(error), caplog.text])

    assert served.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "not allowed: Bearer [secret] and [secret]" in error.message
    assert KEY not in told
    assert HEADER not in told


async def test_no_secret_is_in_an_error_of_the_connection(endpoint, make, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    for ending in (Drop(), Hang(), Raw(KEY.encode()), Reply(None, message={"refusal": KEY})):
        served = endpoint(ending)
        model = make(
            served.base_url, api_key=KEY, headers={"X-Gate": HEADER}, timeout=0.3, max_retries=0
        )
        error = await failure(model)
        told = "".join([*traceback.format_exception(error), repr(model), caplog.text])
        assert KEY not in told
        assert HEADER not in told


@pytest.mark.parametrize("stream", [False, True])
async def test_no_key_is_in_a_reply(endpoint, make, stream: bool) -> None:
    """An endpoint that repeats its request does not bring keys into results and trajectories."""
    if stream and make is not streamed:
        pytest.skip("in one piece")

    def echo(asked):
        said = f"You sent {asked.headers['authorization']}, {asked.headers['x-gate-key']} and "
        said += f"{asked.headers['x-title']} to {KEY}."
        return Reply(said, KEY, body={"model": KEY}, pieces=40 if stream else 3)

    headers = {"X-Gate-Key": f"Bearer {HEADER}", "X-Title": "a research title"}
    completion = await answer(make(endpoint(echo).base_url, api_key=KEY, headers=headers))

    assert KEY not in repr(completion)
    assert HEADER not in repr(completion)
    text = "You sent Bearer [secret], [secret] and a research title to [secret]."
    assert completion.text == text


async def test_a_key_in_a_reply_leaves_no_tokens_that_spell_it(endpoint) -> None:
    for said, ids in ((f"it is {KEY}", None), ("it is 4", (7, 8))):
        served = endpoint(Reply(said, tokens=((1,), (7, 8), (-0.1, -0.2))))
        completion = await answer(whole(served.base_url, api_key=KEY, record_tokens=True))
        assert (completion.tokens and completion.tokens.output_ids) == ids


async def test_a_login_inside_a_url_is_a_secret(endpoint, make) -> None:
    served = endpoint(lambda asked: Status(400, {"error": {"message": "user:pass-word-1 is no"}}))
    model = make(served.base_url.replace("//", "//user:pass-word-1@"), max_retries=0)

    assert "pass-word-1" not in str(await failure(model)) + repr(model)


async def test_proxies_of_the_environment_are_ignored(endpoint, make, monkeypatch) -> None:
    """An endpoint gets what was given for it, and no key that was meant for another."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-of-the-environment")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-environment")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/environment")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Other: of-the-environment")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    served = endpoint()
    await answer(make(served.base_url))
    (asked,) = served.requests

    assert "authorization" not in asked.headers
    assert not [v for v in asked.headers.values() if "environment" in v]


async def test_a_cancelled_wait_between_attempts_ends_at_once(endpoint, make) -> None:
    came = threading.Event()

    def refuse(_):
        came.set()
        return Status(429, {}, {"retry-after": "60"})

    model = make(endpoint(refuse).base_url)
    call = asyncio.create_task(model.complete(ASK))
    assert await asyncio.to_thread(came.wait, 60)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    await model.close()
