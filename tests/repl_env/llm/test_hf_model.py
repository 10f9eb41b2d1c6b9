"""`HFModel` asks with OpenEnv's settings, and with no token but the given one."""

from __future__ import annotations

import asyncio

import pytest

from repl_env.errors import ModelError
from repl_env.llm.hf import SAMPLING
from repl_env.rlm import HFModel, ModelRequest, ModelUsage
from tests.repl_env.llm.endpoint import Reply

QUESTION = [{"role": "user", "content": "how many words"}]
ASK = ModelRequest(messages=QUESTION)


async def ask(served, request=ASK, **options):
    model = HFModel("m", base_url=served.base_url, **options)
    try:
        return await model.complete(request)
    finally:
        await model.close()


async def test_an_answer_has_text_usage_reason_and_model(endpoint) -> None:
    answer = await ask(endpoint(Reply("these are four words", finish_reason="length")))

    assert answer.text == "these are four words"
    assert answer.usage == ModelUsage(3, 4)
    assert answer.truncated
    assert answer.model == "m"


async def test_sampling_defaults_are_openenv_s(endpoint) -> None:
    served = endpoint()
    await ask(served)

    assert served.requests[0].body.items() >= {
        "model": "m", "messages": QUESTION, "max_tokens": 2048, "temperature": 0.6, "top_p": 0.95,
        "presence_penalty": 0.0, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0,
        "chat_template_kwargs": {"enable_thinking": False},
    }.items()  # fmt: skip


async def test_a_url_is_no_model_name(endpoint) -> None:
    """The library would ask there, with the token; and names come from code in sessions too."""
    served = endpoint()
    model = HFModel("m", token="hf_x", max_retries=0)
    with pytest.raises(ModelError, match="request"):
        await model.complete(ModelRequest(messages=QUESTION, model=served.base_url))
    await model.close()
    with pytest.raises(ValueError, match="base_url"):
        HFModel(served.base_url, token="hf_x")

    assert served.requests == []


async def test_settings_override_and_can_remove_the_defaults(endpoint) -> None:
    served = endpoint()
    sampling = {"top_p": 0.5, "min_p": None, "seed": 7, "extra_body": {"top_k": 1, "x": 2}}
    await ask(served, sampling=sampling)
    body = served.requests[0].body

    assert (body["top_p"], body["seed"], body["top_k"], body["x"]) == (0.5, 7, 1, 2)
    assert "min_p" not in body
    assert body["temperature"] == SAMPLING["temperature"]


@pytest.mark.parametrize(("most", "sent"), [(None, 2048), (5, 5), (5000, 2048)])
async def test_a_limit_is_always_sent(endpoint, most, sent) -> None:
    """The endpoints' own is 100 tokens."""
    served = endpoint()
    await ask(served, ModelRequest(messages=QUESTION, max_output_tokens=most))

    assert served.requests[0].body["max_tokens"] == sent


async def test_token_and_headers_are_sent(endpoint) -> None:
    served = endpoint()
    await ask(served, token="hf_given", headers={"X-Session": "s"})

    assert served.requests[0].headers["authorization"] == "Bearer hf_given"
    assert served.requests[0].headers["x-session"] == "s"


async def test_a_request_may_name_another_model(endpoint) -> None:
    served = endpoint()
    await ask(served, ModelRequest(messages=QUESTION, model="other"))

    assert served.requests[0].body["model"] == "other"


async def test_without_a_token_no_request_is_sent(monkeypatch) -> None:
    """Neither the environment's token nor a cached login is taken unasked."""
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    with pytest.raises(ModelError, match="no token") as raised:
        await HFModel()(QUESTION)

    assert raised.value.kind == "authentication"


async def test_a_key_of_another_service_needs_a_provider() -> None:
    with pytest.raises(ModelError, match="non-Hugging Face") as raised:
        await HFModel("m", token="sk-of-a-provider", max_retries=0)(QUESTION)

    assert raised.value.kind == "not_found"


def test_the_default_model_is_openenv_s() -> None:
    assert repr(HFModel()) == "HFModel('Qwen/Qwen3.5-9B', host=None)"


def test_one_model_serves_consecutive_event_loops(endpoint) -> None:
    model = HFModel("m", base_url=endpoint("yes").base_url)

    async def once():
        text = (await model.complete(ASK)).text
        await model.close()
        return text

    assert [asyncio.run(once()) for _ in range(2)] == ["yes"] * 2


def test_sampling_is_checked() -> None:
    with pytest.raises(ValueError, match=r"sampling\['model'\]"):
        HFModel(sampling={"model": "m"})
