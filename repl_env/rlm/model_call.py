"""`call_model`: one question to one model, within the tree's budget and the process's gate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from repl_env.common.json_values import replace_surrogates
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.llm.base import ChatModel, Completion, ModelRequest, ModelUsage, as_completion
from repl_env.llm.request_gate import REQUESTS, RequestGate
from repl_env.rlm.budget.ledger import LedgerAccount, Reservation
from repl_env.rlm.budget.usage_totals import is_count

T = TypeVar("T")

# A model that was given the tree's last seconds may give up this much before our clock does.
_EARLY = 0.05

# Seconds that a cancelled call has to close what it holds. A model may be anybody's, and one that
# goes on all the same must not hold up the end of a run.
_LETTING_GO = 1.0

# Kept here, because a loop keeps only weak references to its tasks.
_open: Final[set[asyncio.Task[Any]]] = set()


async def call_model(
    model: ChatModel, request: ModelRequest, account: LedgerAccount, gate: RequestGate = REQUESTS
) -> Completion:
    """Ask `model`, at the expense of `account`.

    First what the call may take is reserved, then it waits for the gate, then the model is asked
    with what was granted. A call that fails or is cancelled once it has its reservation counts as
    a failed call, with the tokens that the endpoint says it took.

    The answer's text may be empty, and is valid Unicode.

    Raises:
        BudgetExceeded: it does not fit into the budget, or the time of the tree ran out.
        ModelError: there is no answer. Whatever else a model raises becomes one, with the name of
            its type for the kind.
    """
    with _errors_of_the_model():
        bound = model.count_tokens(request.begun)
        if not is_count(bound):
            raise ModelError("type", f"count_tokens gave {bound!r}, which is no count")
    reservation = await account.reserving(
        model=request.model or model.name,
        input_tokens=bound,
        # A limit that the model does not keep bounds nothing.
        output_tokens=request.max_output_tokens if model.bounded else None,
    )
    with reservation:
        try:
            completion = await _in_time(model, _limited(request, reservation), account, gate)
        except ModelError as error:
            reservation.fail(error.usage)  # a refusal, or an answer without text, is paid as others
            raise
        usage = completion.usage if isinstance(completion.usage, ModelUsage) else ModelUsage()
        reservation.settle(
            usage,
            input_estimate=bound,
            output_estimate=_estimate(model, completion, usage, reservation),
            price_model=completion.model,
        )
    return completion


async def _in_time(
    model: ChatModel, request: ModelRequest, account: LedgerAccount, gate: RequestGate
) -> Completion:
    """The model's answer, from behind the gate, unless the tree's time ends before it is there."""
    try:
        async with asyncio.timeout(account.seconds_left()) as clock, gate:
            try:
                return await _answer(model, request, account)
            except ModelError as error:
                # It may have noticed the end of the tree's time before our clock did, or have
                # taken the clock's cancellation for a failure of its own.
                early = error.kind == "timeout" and _nearly_over(account)
                if early or clock.expired():
                    raise _out_of_time() from error
                raise
    except TimeoutError as error:
        raise _out_of_time() from error


async def _answer(model: ChatModel, request: ModelRequest, account: LedgerAccount) -> Completion:
    limits = [limit for limit in (request.timeout, account.seconds_left()) if limit is not None]
    with _errors_of_the_model():
        asking = model.complete(replace(request, timeout=min(limits, default=None)))
        answer = await _until_left(asking)
        completion = as_completion(answer)
        if not isinstance(completion.text, str):
            kind = type(completion.text).__name__
            raise ModelError("type", f"the text of the answer is {kind}, not str")
        text = replace_surrogates(completion.text)
    return completion if text == completion.text else replace(completion, text=text)


async def _until_left(asking: Coroutine[Any, Any, T]) -> T:
    """What `asking` comes to. Who is cancelled waits a little for it to let go, and then leaves."""
    task = asyncio.create_task(asking)
    _open.add(task)
    task.add_done_callback(_ended)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=_LETTING_GO)
        raise
    return task.result()


def _ended(task: asyncio.Task[Any]) -> None:
    _open.discard(task)
    if not task.cancelled():
        task.exception()  # seen, also where nobody waits for it any more


def _limited(request: ModelRequest, reservation: Reservation) -> ModelRequest:
    limits = [
        limit
        for limit in (request.max_output_tokens, reservation.output_tokens)
        if limit is not None
    ]
    return replace(request, max_output_tokens=min(limits, default=None))


def _estimate(
    model: ChatModel, completion: Completion, usage: ModelUsage, reservation: Reservation
) -> int:
    """An upper bound of the answer's tokens, where the endpoint did not count them."""
    if is_count(usage.output_tokens):
        return 0
    with _errors_of_the_model():
        # What a message costs beyond its text is part of a question only.
        whole, frame = (
            model.count_tokens([{"role": "assistant", "content": text}])
            for text in (completion.text, "")
        )
        estimate = max(whole - frame, 0)
    if model.bounded and reservation.output_tokens is not None:
        return min(estimate, reservation.output_tokens)
    return estimate


def _nearly_over(account: LedgerAccount) -> bool:
    left = account.seconds_left()
    return left is not None and left <= _EARLY


def _out_of_time() -> BudgetExceeded:
    return BudgetExceeded("seconds", "budget: time ran out during the call")


@contextmanager
def _errors_of_the_model() -> Iterator[None]:
    """Whatever a model raises, as a ModelError."""
    try:
        yield
    except ModelError:
        raise
    # Boundary: a model may be anybody's class, and raise anything.
    except Exception as error:
        kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
        raise ModelError(kind, str(error)) from error
