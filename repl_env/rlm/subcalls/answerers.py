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

    `gate` limits the requests of the process, `width` the sub-calls of the run.
    """

    run: str
    number: int
    account: LedgerAccount
    gate: RequestGate
    width: RequestGate
    cell: int = 0

    @property
    def path(self) -> str:
        """The name of the call, and of the run that it begins."""
        return f"{self.run}.{self.number}"


class Answerer(ABC):
    """Answers requests of a session's code. Safe to use from several tasks."""

    @abstractmethod
    async def answer(self, question: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Return the answer.

        Raises:
            ModelError, BudgetExceeded: there is none.
        """

    async def answer_all(
        self, questions: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Return an answer to each request, in order; `ended` receives each as it comes.

        A request without an answer yields a failed `SubcallReply`.
        """

        async def one(index: int) -> SubcallReply:
            reply = await answered(self, questions[index], calls[index])
            ended(index, reply)
            return reply

        under_way = [asyncio.create_task(one(index)) for index in range(len(questions))]
        try:
            return list(await asyncio.gather(*under_way))
        finally:
            # A listener may raise, as a writer does on a full disk: the rest is cancelled.
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


async def answered(
    answerer: Answerer, question: SubcallRequest, call: SubcallOrigin
) -> SubcallReply:
    """Return the answer, or a failed `SubcallReply`, once a slot for the call is free.

    The time of the request begins then.
    """
    try:
        async with call.width, asyncio.timeout(question.timeout):
            return await answerer.answer(question, call)
    except (ModelError, BudgetExceeded) as error:
        return SubcallReply.failed(error)
    except TimeoutError:
        return SubcallReply.failed(TimeoutError(f"no answer within {question.timeout} seconds"))


class ModelAnswerer(Answerer):
    """A model answers, from the prompt alone."""

    def __init__(
        self, model: ChatModel, default: str | None = None, max_output_tokens: int | None = None
    ) -> None:
        self.model = model
        self._default = default
        self._max_output_tokens = max_output_tokens

    async def answer(self, question: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Ask the model; with a schema, once more if the answer does not fit."""
        messages: list[Message] = [{"role": "user", "content": question.text}]
        completion = await self._ask(question, call, messages, "query")
        if question.schema is None:
            return SubcallReply.of(completion)
        try:
            return SubcallReply.of(completion, await fitting(completion, question.schema))
        except ValueError as error:
            wrong = f"{error}. Reply again, with nothing but JSON that fits the schema."
        messages += [
            {"role": "assistant", "content": completion.text},
            {"role": "user", "content": wrong},
        ]
        again = await self._ask(question, call, messages, "repair")
        usage = _sum(completion.usage, again.usage)
        whole = Completion(again.text, usage, again.finish_reason, again.model)
        try:
            return SubcallReply.of(whole, await fitting(again, question.schema))
        except ValueError as error:
            problem = ModelError("schema", f"twice, {error}")
            return SubcallReply(f"Error: {problem}", str(problem), usage, model=again.model)

    async def _ask(
        self,
        question: SubcallRequest,
        call: SubcallOrigin,
        messages: Sequence[Message],
        purpose: Purpose,
    ) -> Completion:
        request = ModelRequest(
            messages=tuple(messages),
            model=question.model or self._default,
            max_output_tokens=self._max_output_tokens,
            schema=question.schema,
            origin=Origin(call.run, purpose, call.number),
        )
        return await call_model(self.model, request, call.account, call.gate)


class SplitAnswerer(Answerer):
    """One answerer for single requests, and another for batches."""

    def __init__(self, one: Answerer, many: Answerer) -> None:
        self._one, self._many = one, many

    @classmethod
    def of(cls, one: Answerer | None, many: Answerer | None) -> Answerer | None:
        """Combine both; one of them alone answers both kinds; None for neither."""
        return cls(one, many) if one and many else one or many

    async def answer(self, question: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Answer with the first."""
        return await self._one.answer(question, call)

    async def answer_all(
        self, questions: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Answer with the second."""
        return await self._many.answer_all(questions, calls, ended)


async def fitting(completion: Completion, schema: Mapping[str, Any]) -> JSON:
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
