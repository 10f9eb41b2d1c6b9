"""Functions of users that answer sub-calls: one by one, or a batch in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from repl_env.concurrency.user_functions import accepts, call_user_function, is_async
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import CallableModel, Completion, as_completion
from repl_env.rlm.budget.ledger import LedgerAccount, Reservation
from repl_env.rlm.run_config import SHARE
from repl_env.rlm.subcalls.answerers import Answerer, Ended, SubcallOrigin, matching_value
from repl_env.rlm.subcalls.subcall_messages import SubcallReply, SubcallRequest


class PromptFunction(CallableModel):
    """A user's function of `(prompt)` or `(prompt, model)`, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # From its own signature: the function passed on here takes messages instead of a prompt.
        wants_model = accepts(function, "", None)

        def ask(messages: list[Message], model: str | None) -> Any:
            prompt = "\n\n".join(str(message["content"]) for message in messages)
            return function(prompt, model) if wants_model else function(prompt)

        async def ask_async(messages: list[Message], model: str | None) -> Any:
            return await ask(messages, model)

        super().__init__(ask_async if is_async(function) else ask)


class BatchFunction(Answerer):
    """A user's function of `(prompts)` or `(prompts, model)`: one call for all."""

    def __init__(
        self, function: Callable[..., Any], default: str | None = None, may_be_shorter: bool = False
    ) -> None:
        self._function = function
        self._takes_model = accepts(function, [], None)
        self._default = default
        # Whether the function, and so this answerer, may return fewer answers.
        self._may_be_shorter = may_be_shorter

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Answer a batch of one."""
        return (await self._answer_all([request], [call], _ignore))[0]

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Make one call with all prompts that the budget admits.

        It counts as one concurrent call.
        """
        if not calls:
            return []
        async with calls[0].slots:
            return await self._answer_all(requests, calls, ended)

    async def _answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        replies: list[SubcallReply | None] = [None] * len(requests)
        with ExitStack() as stack:
            reservations: dict[int, Reservation] = {}
            share = _share(calls[0].account, len(calls)) if calls else None
            for index, (request, call) in enumerate(zip(requests, calls, strict=True)):
                try:
                    reservations[index] = stack.enter_context(self._reserve(request, call, share))
                except BudgetExceeded as error:
                    replies[index] = SubcallReply.failed(error)
            admitted = [requests[index] for index in reservations]
            try:
                answers = await self._ask(admitted, calls[0]) if admitted else []
            except ModelError as error:
                answers = [error] * len(admitted)
            answers_by_reservation = dict(zip(reservations, answers, strict=False))
            for index, answer in answers_by_reservation.items():
                _settle(requests[index], reservations[index], answer)
        for index, answer in answers_by_reservation.items():
            replies[index] = await _reply(requests[index], answer)
        found = [reply for reply in replies if reply is not None]
        for index, reply in enumerate(found):
            ended(index, reply)
        return found

    def _reserve(
        self, request: SubcallRequest, call: SubcallOrigin, share: int | None
    ) -> Reservation:
        # At once or not at all: a call with a part of a batch's reservations must not wait for the
        # rest.
        return call.account.reserve(
            model=request.model or self._default,
            input_tokens=_bound(request.text),
            output_tokens=share,
        )

    async def _ask(
        self, requests: Sequence[SubcallRequest], call: SubcallOrigin
    ) -> Sequence[Completion | ModelError]:
        prompts = [request.text for request in requests]
        arguments: tuple[Any, ...] = (prompts,)
        if self._takes_model:
            arguments = (prompts, requests[0].model or self._default)
        try:
            async with call.gate:
                answers = await call_user_function(self._function, *arguments)
            if isinstance(answers, str):
                raise TypeError("a function for batches returns a list of answers, not one str")
            answers = list(answers)
            shortened = len(answers) < len(prompts) and self._may_be_shorter
            if not (shortened or len(answers) == len(prompts)):
                raise ValueError(f"{len(answers)} answers to {len(prompts)} prompts")
        # Boundary: a user's function may raise anything.
        except Exception as error:
            raise ModelError(type(error).__name__, str(error)) from error
        return [_completion(answer) for answer in answers]


def _share(account: LedgerAccount, count: int) -> int | None:
    """Return the tokens of each of `count` answers, so that all fit; None: no limit."""
    budget, left = account.ledger.budget, account.left().output_tokens
    if left is not None:
        return max(1, left // count)
    return None if budget.usd is None else SHARE


def _settle(
    request: SubcallRequest, reservation: Reservation, answer: Completion | ModelError
) -> None:
    if not isinstance(answer, ModelError):  # otherwise the reservation ends as failed
        reservation.settle(
            answer.usage,
            input_estimate=_bound(request.text),
            output_estimate=_bound(answer.text),
            price_model=answer.model or request.model,
        )


async def _reply(request: SubcallRequest, answer: Completion | ModelError) -> SubcallReply:
    if isinstance(answer, ModelError):
        return SubcallReply.failed(answer)
    if request.schema is None:
        return SubcallReply.of(answer)
    try:
        return SubcallReply.of(answer, await matching_value(answer, request.schema))
    except ValueError as error:
        return replace(SubcallReply.failed(ModelError("schema", str(error))), infrastructure=False)


def _completion(answer: object) -> Completion | ModelError:
    try:
        return as_completion(answer)
    except ModelError as error:
        return error


def _bound(text: str) -> int:
    """Return the bytes of a text, which no byte-level vocabulary exceeds in tokens."""
    return len(text.encode("utf-8", "replace"))


def _ignore(index: int, reply: SubcallReply) -> None:
    pass
