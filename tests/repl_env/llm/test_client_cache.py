"""Connections of a model in event loops that end before it, or stand still while it is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress

import pytest

from repl_env.common.threads import RUNS
from repl_env.errors import ModelError
from repl_env.interfaces import Message
from repl_env.rlm import RLM, ChatModel, Completion, HFModel, OpenAIModel, ScriptedModel
from tests.repl_env.llm.endpoint import Drop, Status
from tests.waiting import PATIENCE

QUESTION: list[Message] = [{"role": "user", "content": "?"}]
KINDS = pytest.mark.parametrize("kind", [OpenAIModel, HFModel])


async def ask(model: ChatModel) -> str:
    return (await model(QUESTION)).text


@KINDS
def test_connections_are_closed_when_the_loop_ends_that_opened_them(endpoint, kind, caplog) -> None:
    served = endpoint("yes")
    with caplog.at_level(logging.ERROR), kind("m", base_url=served.base_url) as model:
        for _ in range(2):
            assert asyncio.run(ask(model)) == "yes"
            assert served.wait_closed(5)
    assert caplog.messages == []  # asyncio reports unclosed resources here


@KINDS
def test_a_plain_with_in_a_coroutine_closes_what_was_opened_there(endpoint, kind) -> None:
    served = endpoint("yes")

    async def whole() -> None:
        with kind("m", base_url=served.base_url) as model:
            assert await ask(model) == "yes"
            assert not served.wait_closed(0)
        assert await asyncio.to_thread(served.wait_closed, PATIENCE)

    asyncio.run(whole())


@KINDS
def test_a_plain_with_at_the_end_of_a_program_closes_too(endpoint, kind, caplog) -> None:
    served = endpoint("yes")

    async def whole() -> str:
        with kind("m", base_url=served.base_url) as model:
            return await ask(model)

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(whole()) == "yes"
    assert served.wait_closed(5)
    assert caplog.messages == []


def test_a_plain_with_does_not_hold_up_the_loop_that_it_is_in() -> None:
    class Closing(ChatModel):
        async def complete(self, request) -> Completion:
            return Completion("yes")

        async def close(self) -> None:
            closed_on.append(asyncio.get_running_loop())
            done.set()

    closed_on: list[asyncio.AbstractEventLoop] = []
    done = asyncio.Event()

    async def whole() -> None:
        with Closing():
            pass
        assert closed_on == []  # not while the loop stood still
        await done.wait()
        assert closed_on == [asyncio.get_running_loop()]

    asyncio.run(whole())


def test_a_conversation_that_was_awaited_may_be_in_a_plain_with(sandbox) -> None:
    async def whole() -> str | None:
        model = ScriptedModel(["```repl\nFINAL(1)\n```"])
        with RLM(model, sandbox=sandbox).conversation() as talk:
            return (await talk.ask("?")).final_answer

    before = sandbox.statistics().open
    assert asyncio.run(whole()) == "1"
    assert sandbox.statistics().open == before


@KINDS
@pytest.mark.parametrize("answer", [Status(401), Drop(), "yes"])
def test_a_model_that_nobody_closed_leaves_no_complaint(endpoint, kind, answer, caplog) -> None:
    """A caught error holds the model until the collector finds both."""
    served = endpoint(answer)
    with caplog.at_level(logging.ERROR):
        model = kind("m", base_url=served.base_url, max_retries=0)
        with suppress(ModelError):
            RUNS.wait_for(ask(model))
        del model
        gc.collect()
        assert served.wait_closed(PATIENCE)
    assert caplog.messages == []


@KINDS
def test_nor_does_one_whose_loop_was_only_closed(endpoint, kind, caplog) -> None:
    served = endpoint(Drop())  # no connection is left, which asyncio itself would complain about
    with caplog.at_level(logging.ERROR):
        model = kind("m", base_url=served.base_url, max_retries=0)
        with pytest.raises(ModelError):
            run_on_a_loop_that_only_closes(ask(model))
        del model
        gc.collect()
    assert caplog.messages == []


def run_on_a_loop_that_only_closes(coroutine) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
