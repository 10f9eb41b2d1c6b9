"""Who answers the questions of a session's code: a model, or functions that the user gave.

The third kind, a run of its own, is in `repl_env.rlm.recursion`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from repl_env.aside import aside
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.rlm.asking import ask
from repl_env.rlm.gate import Gate
from repl_env.rlm.given_functions import called, is_async, takes
from repl_env.rlm.ledger import Account, Reservation
from repl_env.rlm.manner import SHARE
from repl_env.rlm.model import (
    CallableModel,
    ChatModel,
    Completion,
    ModelRequest,
    ModelUsage,
    Origin,
    Purpose,
    as_completion,
)
from repl_env.rlm.questions import Question, Reply, parsed
from repl_sandbox.types import JSON

Ended: TypeAlias = Callable[[int, "Reply"], None]

# Questions of one batch that are under way at once. What is at the endpoint, the gate limits; this
# keeps a batch of ten thousand from being ten thousand tasks.
BATCH_WIDTH = 256


@dataclass(frozen=True, slots=True)
class Call:
    """Which call of which run asks: its run's path, its number, who pays, the cell that asks."""

    run: str
    number: int
    account: Account
    gate: Gate
    cell: int = 0

    @property
    def path(self) -> str:
        """The name of the call, and of the run that it begins."""
        return f"{self.run}.{self.number}"


class Answerer(ABC):
    """Answers questions. Safe to use from several tasks."""

    @abstractmethod
    async def answer(self, question: Question, call: Call) -> Reply:
        """The answer.

        Raises:
            ModelError, BudgetExceeded: there is none.
        """

    async def answer_all(
        self, questions: Sequence[Question], calls: Sequence[Call], ended: Ended
    ) -> list[Reply]:
        """An answer to each, in order; `ended` is told of each as it comes.

        One that there is no answer to is a failed `Reply`.
        """
        width = asyncio.Semaphore(BATCH_WIDTH)

        async def one(index: int) -> Reply:
            async with width:
                reply = await answered(self, questions[index], calls[index])
            ended(index, reply)
            return reply

        under_way = [asyncio.create_task(one(index)) for index in range(len(questions))]
        try:
            return list(await asyncio.gather(*under_way))
        finally:
            # Whoever watches may raise, as a writer does on a full disk: nobody waits for the rest.
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


async def answered(answerer: Answerer, question: Question, call: Call) -> Reply:
    """The answer, or a failed `Reply` where there is none."""
    try:
        async with asyncio.timeout(question.timeout):
            return await answerer.answer(question, call)
    except (ModelError, BudgetExceeded) as error:
        return Reply.failed(error)
    except TimeoutError:
        return Reply.failed(TimeoutError(f"no answer within {question.timeout} seconds"))


class ModelAnswerer(Answerer):
    """A model answers, from the prompt alone."""

    def __init__(
        self, model: ChatModel, default: str | None = None, max_output_tokens: int | None = None
    ) -> None:
        self.model = model
        self._default = default
        self._max_output_tokens = max_output_tokens

    async def answer(self, question: Question, call: Call) -> Reply:
        """Ask the model; with a schema, once more if the answer does not fit."""
        messages: list[Message] = [{"role": "user", "content": question.text}]
        completion = await self._ask(question, call, messages, "query")
        if question.schema is None:
            return Reply.of(completion)
        try:
            return Reply.of(completion, await _fitting(completion, question.schema))
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
            return Reply.of(whole, await _fitting(again, question.schema))
        except ValueError as error:
            problem = ModelError("schema", f"twice, {error}")
            return Reply(f"Error: {problem}", str(problem), usage, model=again.model)

    async def _ask(
        self, question: Question, call: Call, messages: Sequence[Message], purpose: Purpose
    ) -> Completion:
        request = ModelRequest(
            messages=tuple(messages),
            model=question.model or self._default,
            max_output_tokens=self._max_output_tokens,
            schema=question.schema,
            origin=Origin(call.run, purpose, call.number),
        )
        return await ask(self.model, request, call.account, call.gate)


class PromptFunction(CallableModel):
    """A function of the user's that takes `(prompt)` or `(prompt, model)`, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # By its own signature: what is handed on here takes messages in the place of a prompt.
        wants_model = takes(function, "", None)

        def asked(messages: list[Message], model: str | None) -> Any:
            prompt = "\n\n".join(str(message["content"]) for message in messages)
            return function(prompt, model) if wants_model else function(prompt)

        async def asked_async(messages: list[Message], model: str | None) -> Any:
            return await asked(messages, model)

        super().__init__(asked_async if is_async(function) else asked)


class BatchFunction(Answerer):
    """A function of the user's that takes `(prompts)` or `(prompts, model)`: one call for all."""

    def __init__(
        self, function: Callable[..., Any], default: str | None = None, shortens: bool = False
    ) -> None:
        self._function = function
        self._takes_model = takes(function, [], None)
        self._default = default
        self._shortens = shortens  # it may give fewer answers, and so does this

    async def answer(self, question: Question, call: Call) -> Reply:
        """A batch of one."""
        return (await self.answer_all([question], [call], _nobody))[0]

    async def answer_all(
        self, questions: Sequence[Question], calls: Sequence[Call], ended: Ended
    ) -> list[Reply]:
        """One call with all prompts that the budget has room for."""
        replies: list[Reply | None] = [None] * len(questions)
        with ExitStack() as held:
            paid: dict[int, Reservation] = {}
            share = _share(calls[0].account, len(calls)) if calls else None
            for index, (question, call) in enumerate(zip(questions, calls, strict=True)):
                try:
                    paid[index] = held.enter_context(self._reserve(question, call, share))
                except BudgetExceeded as error:
                    replies[index] = Reply.failed(error)
            asked = [questions[index] for index in paid]
            try:
                answers = await self._ask(asked, calls[0]) if asked else []
            except ModelError as error:
                answers = [error] * len(asked)
            given = dict(zip(paid, answers, strict=False))
            for index, answer in given.items():
                _settle(questions[index], paid[index], answer)
        for index, answer in given.items():
            replies[index] = await _reply(questions[index], answer)
        found = [reply for reply in replies if reply is not None]
        for index, reply in enumerate(found):
            ended(index, reply)
        return found

    def _reserve(self, question: Question, call: Call, share: int | None) -> Reservation:
        # At once or not at all: who holds a part of a batch's must not wait for the rest.
        return call.account.reserve(
            model=question.model or self._default,
            input_tokens=_bound(question.text),
            output_tokens=share,
        )

    async def _ask(
        self, questions: Sequence[Question], call: Call
    ) -> Sequence[Completion | ModelError]:
        prompts = [question.text for question in questions]
        arguments: tuple[Any, ...] = (prompts,)
        if self._takes_model:
            arguments = (prompts, questions[0].model or self._default)
        try:
            async with call.gate:
                answers = await called(self._function, *arguments)
            few = len(answers) < len(prompts) and self._shortens
            if isinstance(answers, str) or not (few or len(answers) == len(prompts)):
                raise ValueError(f"{len(answers)} answers to {len(prompts)} prompts")
        # Boundary: the function is the user's and may raise anything.
        except Exception as error:
            raise ModelError(type(error).__name__, str(error)) from error
        return [_completion(answer) for answer in answers]


class Either(Answerer):
    """One who answers single questions, and another who answers batches."""

    def __init__(self, one: Answerer, many: Answerer) -> None:
        self._one, self._many = one, many

    @classmethod
    def of(cls, one: Answerer | None, many: Answerer | None) -> Answerer | None:
        """The two together; one of them alone answers both kinds; None for neither."""
        return cls(one, many) if one and many else one or many

    async def answer(self, question: Question, call: Call) -> Reply:
        """As the first."""
        return await self._one.answer(question, call)

    async def answer_all(
        self, questions: Sequence[Question], calls: Sequence[Call], ended: Ended
    ) -> list[Reply]:
        """As the second."""
        return await self._many.answer_all(questions, calls, ended)


def _share(account: Account, count: int) -> int | None:
    """The tokens that each of `count` answers may have, so that all fit; None: no limit."""
    budget, left = account.ledger.budget, account.left().output_tokens
    if left is not None:
        return max(1, left // count)
    return None if budget.usd is None else SHARE


def _settle(question: Question, reservation: Reservation, answer: Completion | ModelError) -> None:
    if not isinstance(answer, ModelError):  # else the reservation ends as failed
        reservation.settle(
            answer.usage,
            input_estimate=_bound(question.text),
            output_estimate=_bound(answer.text),
            price_model=answer.model or question.model,
        )


async def _reply(question: Question, answer: Completion | ModelError) -> Reply:
    if isinstance(answer, ModelError):
        return Reply.failed(answer)
    if question.schema is None:
        return Reply.of(answer)
    try:
        return Reply.of(answer, await _fitting(answer, question.schema))
    except ValueError as error:
        return replace(Reply.failed(ModelError("schema", str(error))), ours=False)


async def _fitting(completion: Completion, schema: Mapping[str, Any]) -> JSON:
    """The JSON that an answer is; ValueError says why it does not fit."""
    return await aside(partial(parsed, completion.text, schema))


def _completion(answer: object) -> Completion | ModelError:
    try:
        return as_completion(answer)
    except ModelError as error:
        return error


def _bound(text: str) -> int:
    """No vocabulary over bytes makes more tokens of a text than it has bytes."""
    return len(text.encode("utf-8", "replace"))


def _sum(first: ModelUsage, second: ModelUsage) -> ModelUsage:
    def total(a: Any, b: Any) -> Any:
        return None if a is None or b is None else a + b

    return ModelUsage(
        total(first.input_tokens, second.input_tokens),
        total(first.output_tokens, second.output_tokens),
        total(first.usd, second.usd),
    )


def _nobody(index: int, reply: Reply) -> None:
    pass
