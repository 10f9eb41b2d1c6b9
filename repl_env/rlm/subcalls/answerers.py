"""Answerers of sub-calls, and the one that asks a model.

`repl_env.rlm.subcalls.function_answerers` calls functions of users, and
`repl_env.rlm.subcalls.child_runs` starts child runs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from repl_env.concurrency.offload import offload
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest, ModelUsage, Origin, Purpose
from repl_env.llm.request_gate import RequestGate
from repl_env.parsing.reasoning import without_thoughts
from repl_env.rlm.budget.ledger import LedgerAccount
from repl_env.rlm.model_call import call_model
from repl_env.rlm.subcalls.subcall_messages import SubcallReply, SubcallRequest, parsed
from repl_sandbox.types import JSON

Ended: TypeAlias = Callable[[int, "SubcallReply"], None]


@dataclass(frozen=True, slots=True)
class SubcallOrigin:
    """The origin of a sub-call: its run's path, its number, its account, its cell.

    `gate` limits the requests of the process, `slots` the sub-calls of the run.
    """

    run: str
    number: int
    account: LedgerAccount
    gate: RequestGate
    slots: RequestGate
    cell: int = 0

    @property
    def path(self) -> str:
        """The name of the call, and of the run that it begins."""
        return f"{self.run}.{self.number}"


class Answerer(ABC):
    """Answers requests of a session's code. Safe to use from several tasks."""

    @abstractmethod
    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Return the answer.

        Raises:
            ModelError, BudgetExceeded: there is none.
        """

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Return an answer to each request, in order; `ended` receives each as it comes.

        A request without an answer yields a failed `SubcallReply`.
        """

        async def one(index: int) -> SubcallReply:
            reply = await answered(self, requests[index], calls[index])
            ended(index, reply)
            return reply

        running = [asyncio.create_task(one(index)) for index in range(len(requests))]
        try:
            return list(await asyncio.gather(*running))
        finally:
            # A listener may raise, as a writer does on a full disk: the rest is cancelled.
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def answered(
    answerer: Answerer, request: SubcallRequest, call: SubcallOrigin
) -> SubcallReply:
    """Return the answer, or a failed `SubcallReply`, once a slot for the call is free.

    The time of the request begins then.
    """
    try:
        async with call.slots, asyncio.timeout(request.timeout):
            return await answerer.answer(request, call)
    except (ModelError, BudgetExceeded) as error:
        return SubcallReply.failed(error)
    except TimeoutError:
        return SubcallReply.failed(TimeoutError(f"no answer within {request.timeout} seconds"))


class ModelAnswerer(Answerer):
    """A model answers, from the prompt alone."""

    def __init__(
        self, model: ChatModel, default: str | None = None, max_output_tokens: int | None = None
    ) -> None:
        self.model = model
        self._default = default
        self._max_output_tokens = max_output_tokens

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Ask the model; with a schema, once more if the answer does not fit."""
        messages: list[Message] = [{"role": "user", "content": request.text}]
        completion = await self._ask(request, call, messages, "query")
        if request.schema is None:
            return SubcallReply.of(completion)
        try:
            return SubcallReply.of(completion, await matching_value(completion, request.schema))
        except ValueError as error:
            correction = f"{error}. Reply again, with nothing but JSON that fits the schema."
        messages += [
            {"role": "assistant", "content": completion.text},
            {"role": "user", "content": correction},
        ]
        second = await self._ask(request, call, messages, "repair")
        usage = _sum(completion.usage, second.usage)
        combined = Completion(second.text, usage, second.finish_reason, second.model)
        try:
            return SubcallReply.of(combined, await matching_value(second, request.schema))
        except ValueError as error:
            problem = ModelError("schema", f"twice, {error}")
            return SubcallReply(f"Error: {problem}", str(problem), usage, model=second.model)

    async def _ask(
        self,
        request: SubcallRequest,
        call: SubcallOrigin,
        messages: Sequence[Message],
        purpose: Purpose,
    ) -> Completion:
        model_request = ModelRequest(
            messages=tuple(messages),
            model=request.model or self._default,
            max_output_tokens=self._max_output_tokens,
            schema=request.schema,
            origin=Origin(call.run, purpose, call.number),
        )
        return await call_model(self.model, model_request, call.account, call.gate)


class SplitAnswerer(Answerer):
    """One answerer for single requests, and another for batches."""

    def __init__(self, single: Answerer, batch: Answerer) -> None:
        self._single, self._batch = single, batch

    @classmethod
    def of(cls, single: Answerer | None, batch: Answerer | None) -> Answerer | None:
        """Combine both; one of them alone answers both kinds; None for neither."""
        return cls(single, batch) if single and batch else single or batch

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Answer with the first."""
        return await self._single.answer(request, call)

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Answer with the second."""
        return await self._batch.answer_all(requests, calls, ended)


async def matching_value(completion: Completion, schema: Mapping[str, Any]) -> JSON:
    """Return the JSON of an answer; ValueError says why it does not fit."""
    return await offload(partial(parsed, without_thoughts(completion.text), schema))


def _sum(first: ModelUsage, second: ModelUsage) -> ModelUsage:
    def total(a: Any, b: Any) -> Any:
        return None if a is None or b is None else a + b

    return ModelUsage(
        total(first.input_tokens, second.input_tokens),
        total(first.output_tokens, second.output_tokens),
        total(first.usd, second.usd),
    )
