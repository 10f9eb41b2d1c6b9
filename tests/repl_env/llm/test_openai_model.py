"""`OpenAIModel` asks an endpoint, and its answers come back as completions."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import openai
import pytest

from repl_env.errors import ModelError
from repl_env.rlm import RLM, ModelRequest, ModelUsage, OpenAIModel
from tests.repl_env.environment_internals import set_longest_text
from tests.repl_env.llm.endpoint import Hang, Raw, Reply

QUESTION = [{"role": "user", "content": "how many words"}]
ASK = ModelRequest(messages=QUESTION)


async def ask(served, request=ASK, **options):
    model = OpenAIModel("m", base_url=served.base_url, **options)
    try:
        return await model.complete(request)
    finally:
        await model.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_text_usage_reason_and_model(endpoint, stream: bool) -> None:
    served = endpoint(Reply("these are four words", finish_reason="length"))
    answer = await ask(served, stream=stream)

    assert answer.text == "these are four words"
    assert answer.usage == ModelUsage(3, 4, None)
    assert answer.truncated
    assert answer.model == "m"
    assert answer.tokens is None
    assert served.requests[0].stream is stream


async def test_the_request_has_what_was_given(endpoint) -> None:
    served = endpoint()
    sampling = {"temperature": 0.5, "top_k": 20, "min_p": 0.1, "extra_body": {"top_k": 7, "x": [1]}}
    await ask(served, api_key="the-key", headers={"X-Session": "s"}, sampling=sampling)
    (asked,) = served.requests

    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == "Bearer the-key"
    assert asked.headers["x-session"] == "s"
    assert asked.body == {
        "model": "m", "messages": QUESTION, "temperature": 0.5, "top_k": 7, "min_p": 0.1, "x": [1],
    }  # fmt: skip


async def test_a_request_may_name_another_model_of_the_endpoint(endpoint) -> None:
    served = endpoint()
    answer = await ask(served, ModelRequest(messages=QUESTION, model="other"))

    assert served.requests[0].body["model"] == answer.model == "other"


@pytest.mark.parametrize(
    ("sampling", "field", "most", "sent"),
    [
        ({}, None, None, {}),
        ({}, None, 5, {"max_tokens": 5}),
        ({}, "max_completion_tokens", 5, {"max_completion_tokens": 5}),
        ({"max_tokens": 9}, None, None, {"max_tokens": 9}),
        ({"max_tokens": 9}, None, 5, {"max_tokens": 5}),
        ({"max_tokens": 3}, None, 5, {"max_tokens": 3}),
        ({"max_completion_tokens": 9}, None, 5, {"max_completion_tokens": 5}),
        ({"max_tokens": 0}, None, 5, {"max_tokens": 0}),
    ],
)
async def test_the_smaller_limit_of_the_answer_is_sent(endpoint, sampling, field, most, sent):
    served = endpoint()
    request = ModelRequest(messages=QUESTION, max_output_tokens=most)
    await ask(served, request, sampling=sampling, max_tokens_field=field)
    body = served.requests[0].body

    assert {name: body[name] for name in body if name.startswith("max")} == sent


async def test_a_schema_is_sent_only_to_endpoints_that_support_it(endpoint) -> None:
    served = endpoint()
    request = ModelRequest(messages=QUESTION, schema={"type": "integer"})
    await ask(served, request)
    await ask(served, request, structured=True)
    without, with_it = (asked.body for asked in served.requests)

    assert "response_format" not in without
    assert with_it["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "integer"}},
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_the_price_that_an_endpoint_names_is_kept(endpoint, stream: bool) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.25}

    answer = await ask(endpoint(Reply("a", usage=usage)), stream=stream)
    assert answer.usage == ModelUsage(3, 4, 0.25)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        None, "a lot", [], {},
        {"prompt_tokens": -1, "completion_tokens": "4", "cost": -0.5},
        {"prompt_tokens": True, "completion_tokens": 1.5, "cost": "free"},
        {"prompt_tokens": 10**30, "completion_tokens": None, "cost": True},
    ],
)  # fmt: skip
async def test_counts_that_cannot_be_right_are_unknown(endpoint, usage, stream: bool) -> None:
    answer = await ask(endpoint(Reply("a", usage=usage)), stream=stream)

    assert (answer.text, answer.usage) == ("a", ModelUsage())


@pytest.mark.parametrize("stream", [False, True])
async def test_lone_surrogates_are_replaced_in_both_directions(endpoint, stream: bool) -> None:
    """`\\ud800` can be written in JSON and in Python, and in no UTF-8."""
    served = endpoint(Reply("a\ud800b"))
    messages = [{"role": "user", "content": "c\udfffd é"}]

    answer = await ask(served, ModelRequest(messages=messages), stream=stream)
    assert answer.text == "a?b"
    assert served.requests[0].prompt == "c?d é"


async def test_a_header_may_authorize_instead_of_a_key(endpoint) -> None:
    served = endpoint()
    await ask(served, headers={"authorization": "Basic abcdef"})
    await ask(served, headers={"Authorization": "Basic abcdef"}, api_key="k")

    assert [asked.headers["authorization"] for asked in served.requests] == ["Basic abcdef"] * 2


def logprobs(*entries):
    return {"content": [{"token": token, "logprob": value} for token, value in entries]}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_endless_answer_is_an_error(endpoint, monkeypatch, stream) -> None:
    set_longest_text(monkeypatch, 10)

    with pytest.raises(ModelError, match="longer than 10 characters") as raised:
        await ask(endpoint("eleven char"), stream=stream)
    assert raised.value.kind == "server"


@pytest.mark.parametrize(
    "reply",
    [
        Reply("a", choice={"token_ids": [1, 2]}),
        Reply("a", choice={"logprobs": logprobs(("a", -1.0), ("b", -1.0))}),
        Reply(None, message={"refusal": "eleven char"}),
    ],
)
async def test_endless_fields_beside_the_text_do_not_fill_the_memory(
    endpoint, monkeypatch, reply
) -> None:
    set_longest_text(monkeypatch, 10)

    with pytest.raises(ModelError, match="longer than 10 characters"):
        await ask(endpoint(reply))


async def test_text_in_parts_is_put_together(endpoint) -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "an"}, {"text": "d"}]

    assert (await ask(endpoint(Reply(None, message={"content": parts})))).text == "and"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_cut_before_its_first_word_is_empty(endpoint, stream: bool) -> None:
    """All its tokens went into thinking: the caller pays, and sees why there is nothing."""
    reply = Reply(None, finish_reason="length", usage={"completion_tokens": 9})
    answer = await ask(endpoint(reply), stream=stream)

    assert (answer.text, answer.truncated, answer.usage.output_tokens) == ("", True, 9)


TOKENS = ([1, 2], [3, 4, 5], [-0.5, -1.5, -9999.0])


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_recorded_if_asked_for(endpoint, stream: bool) -> None:
    served = endpoint(Reply("a b c", tokens=TOKENS))
    answer = await ask(served, record_tokens=True, stream=stream)

    assert (
        served.requests[0].body["return_token_ids"] is served.requests[0].body["logprobs"] is True
    )
    assert answer.tokens.prompt_ids == (1, 2)
    assert answer.tokens.output_ids == (3, 4, 5)
    assert answer.tokens.logprobs == (-0.5, -1.5, -9999.0)


async def test_tokens_are_neither_asked_for_nor_kept_otherwise(endpoint) -> None:
    reply = Reply("a", choice={"token_ids": [1]})
    served = endpoint(reply)

    assert (await ask(served)).tokens is None
    assert not {"return_token_ids", "logprobs"} & served.requests[0].body.keys()


@pytest.mark.parametrize(
    ("choice", "trace"),
    [
        ({}, None),
        ({"token_ids": "none"}, None),
        ({"token_ids": [1, "2"]}, None),
        ({"logprobs": logprobs(("a", -1.0))}, None),
        ({"token_ids": [1, 2], "logprobs": logprobs(("a", -1.0))}, ((), (1, 2), ())),
        ({"token_ids": [1], "logprobs": logprobs(("a", "x"))}, ((), (1,), ())),
        ({"token_ids": [1], "prompt_token_ids": [7]}, ((7,), (1,), ())),
        ({"logprobs": logprobs(("token_id:6", -1.0))}, ((), (6,), (-1.0,))),
        ({"logprobs": logprobs(("token_id:6", -(10**400)))}, ((), (6,), ())),
        ({"logprobs": logprobs(("token_id:" + "9" * 5000, -1.0))}, None),
    ],
)
async def test_missing_token_details_are_empty(endpoint, choice, trace) -> None:
    tokens = (await ask(endpoint(Reply("a", choice=choice)), record_tokens=True)).tokens

    assert trace == (tokens and (tokens.prompt_ids, tokens.output_ids, tokens.logprobs))


async def test_many_calls_run_concurrently(endpoint) -> None:
    """No pool of connections holds them back: none is answered before all have come."""
    many, all_here = 150, asyncio.Event()

    async def answer(asked):
        if len(served.requests) == many:
            all_here.set()
        await all_here.wait()
        return asked.prompt

    served = endpoint(answer)
    model = OpenAIModel("m", base_url=served.base_url, max_retries=0)
    requests = [
        ModelRequest(messages=[{"role": "user", "content": str(number)}]) for number in range(many)
    ]
    answers = await asyncio.gather(*map(model.complete, requests))
    await model.close()

    assert [answer.text for answer in answers] == [str(number) for number in range(many)]
    assert served.most_in_flight == many


def test_one_model_serves_consecutive_event_loops(endpoint) -> None:
    served = endpoint("yes")
    model = OpenAIModel("m", base_url=served.base_url, max_retries=0)

    async def twice():
        texts = [(await model.complete(ASK)).text for _ in range(2)]
        await model.close()
        return texts

    assert [asyncio.run(twice()) for _ in range(2)] == [["yes"] * 2] * 2
    assert served.connections == 2


def test_one_model_serves_several_event_loops_at_once(endpoint) -> None:
    together = threading.Barrier(3)

    async def meet(_):
        await asyncio.to_thread(together.wait, 60)
        return "yes"

    model = OpenAIModel("m", base_url=endpoint(meet).base_url, max_retries=0)
    done = threading.Barrier(3)

    async def once(number: int):
        text = (await model.complete(ASK)).text
        await asyncio.to_thread(done.wait, 60)
        if number == 0:
            await model.close()  # of all loops, those of the others too
        await asyncio.to_thread(done.wait, 60)
        return text

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda n: asyncio.run(once(n)), range(3))) == ["yes"] * 3


async def test_a_model_works_again_after_close(endpoint) -> None:
    model = OpenAIModel("m", base_url=endpoint("yes").base_url)
    for _ in range(2):
        assert (await model(QUESTION)).text == "yes"
        await model.close()


def test_with_around_plain_runs_closes_the_model(endpoint) -> None:
    served = endpoint("```repl\nFINAL(6 * 7)\n```")
    with OpenAIModel("m", base_url=served.base_url) as model:
        assert RLM(model).run("?").final_answer == "42"
        assert not served.wait_closed(0)
    assert served.wait_closed(60)


async def test_async_with_closes_the_model(endpoint) -> None:
    served = endpoint("yes")
    async with OpenAIModel("m", base_url=served.base_url) as model:
        assert (await model(QUESTION)).text == "yes"
        assert not served.wait_closed(0)
    assert await asyncio.to_thread(served.wait_closed, 60)


async def test_a_cancelled_call_ends_its_request(endpoint) -> None:
    came = threading.Event()

    def hang(_):
        came.set()
        return Hang()

    served = endpoint(hang)
    model = OpenAIModel("m", base_url=served.base_url)
    call = asyncio.create_task(model.complete(ASK))
    assert await asyncio.to_thread(came.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert await asyncio.to_thread(served.left.wait, 60)
    await model.close()


def mocked(seen: list) -> openai.AsyncOpenAI:
    """A client of OpenAI's own endpoint that sends no request."""
    httpx = import_module("httpx2" if openai.__version__ >= "3" else "httpx")

    def answer(request):
        seen.append(json.loads(request.content))
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}}
        return httpx.Response(200, json={"id": "1", "object": "c", "choices": [choice]})

    return openai.AsyncOpenAI(
        api_key="k", http_client=httpx.AsyncClient(transport=httpx.MockTransport(answer))
    )


async def test_openai_s_own_endpoint_is_asked_as_its_documentation_says() -> None:
    seen: list = []
    client = mocked(seen)
    model = OpenAIModel("m", client=client, record_tokens=True)
    await model.complete(ModelRequest(messages=QUESTION, max_output_tokens=5))
    await model.close()

    assert seen == [{"model": "m", "messages": QUESTION, "max_completion_tokens": 5}]
    assert not client.is_closed()
    await client.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "api_key is missing"),
        ({"base_url": "http://h/v1", "sampling": {"messages": []}}, r"sampling\['messages'\]"),
        ({"base_url": "http://h/v1", "sampling": {"n": 2}}, r"sampling\['n'\]"),
        ({"base_url": "http://h/v1", "sampling": {"extra_body": 1}}, r"\['extra_body'\] must be"),
        ({"base_url": "http://h/v1", "sampling": 1}, "sampling must be a mapping"),
        ({"base_url": "http://h/v1", "client": object()}, "client goes without base_url"),
    ],
)
def test_bad_arguments_are_named(options, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        OpenAIModel("m", **options)


async def test_a_question_that_json_cannot_carry_is_an_error_of_the_request(endpoint) -> None:
    with pytest.raises(ModelError) as raised:
        await ask(endpoint(Raw(b"")), sampling={"seed": object()})

    assert (raised.value.kind, raised.value.retryable) == ("request", False)
