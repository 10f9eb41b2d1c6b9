"""Endpoints that send more than any answer is, whole, in pieces or compressed."""

from __future__ import annotations

import gzip
import json

import pytest

from repl_env.errors import ModelError
from repl_env.llm import endpoints
from repl_env.rlm import HFModel, OpenAIModel
from tests.repl_env.llm.endpoint import Raw, Reply, Status

QUESTION = [{"role": "user", "content": "?"}]
KINDS = pytest.mark.parametrize("kind", [OpenAIModel, HFModel])
MOST = 100_000
EVENTS = "text/event-stream"


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_ANSWER_BYTES", MOST)
    monkeypatch.setattr(endpoints, "MAX_STREAM_BYTES", 8 * MOST)


def body(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return json.dumps({"id": "c", "choices": [{**choice, "finish_reason": "stop"}]}).encode()


def as_gzip(data: bytes) -> Raw:
    return Raw(data, headers={"content-encoding": "gzip"})


async def failure(model) -> ModelError:
    async with model:
        with pytest.raises(ModelError) as raised:
            await model(QUESTION)
    return raised.value


@KINDS
@pytest.mark.parametrize("code", [200, 400, 500])
async def test_an_answer_over_the_limit_is_an_error_without_a_retry(endpoint, kind, code) -> None:
    served = endpoint(Status(code, body("x" * MOST).decode()))
    told = await failure(kind("m", base_url=served.base_url))

    assert (told.kind, told.retryable) == ("server", False)
    assert "more than" in str(told)
    assert len(served.requests) == 1


@KINDS
async def test_an_answer_within_the_bound_is_read(endpoint, kind) -> None:
    served = endpoint("x" * (MOST // 2))
    async with kind("m", base_url=served.base_url) as model:
        assert len((await model(QUESTION)).text) == MOST // 2
    assert served.requests[0].headers["accept-encoding"] == "gzip"


@KINDS
async def test_a_compressed_answer_counts_with_its_uncompressed_size(endpoint, kind) -> None:
    small, large = (gzip.compress(body("x" * length)) for length in (MOST // 2, 64 * MOST))
    served = endpoint([as_gzip(small), as_gzip(large), as_gzip(b"no gzip")])
    async with kind("m", base_url=served.base_url, max_retries=0) as model:
        assert len((await model(QUESTION)).text) == MOST // 2
        with pytest.raises(ModelError, match="more than"):
            await model(QUESTION)
        with pytest.raises(ModelError, match="no gzip"):
            await model(QUESTION)


@KINDS
async def test_an_unrequested_compression_is_named_in_the_error(endpoint, kind) -> None:
    served = endpoint(Raw(b"x", headers={"content-encoding": "br"}))
    told = await failure(kind("m", base_url=served.base_url, max_retries=0))

    assert told.kind == "server"
    assert "'br'" in str(told)


async def test_a_stream_may_be_longer_than_one_of_its_events(endpoint) -> None:
    served = endpoint(Reply("x" * (2 * MOST), pieces=40))
    async with OpenAIModel("m", base_url=served.base_url, stream=True) as model:
        assert len((await model(QUESTION)).text) == 2 * MOST


@pytest.mark.parametrize(
    "data",
    [
        b"data: " + b"x" * (2 * MOST),
        b"data: x\n" * MOST,
        b"\r\ndata: x" * MOST,
        b": nothing\n\n" * MOST,
    ],
    ids=["a line without end", "lines without end", "others", "events without end"],
)
async def test_a_stream_without_end_is_an_error(endpoint, data) -> None:
    served = endpoint(Raw(data, EVENTS))
    told = await failure(OpenAIModel("m", base_url=served.base_url, stream=True, max_retries=0))

    assert (told.kind, told.retryable) == ("server", False)
    assert "more than" in str(told)
