"""`call_model`: one request to one model, within the tree's budget and the process's gate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from repl_env.common.json_values import replace_surrogates
from repl_env.common.set_module import set_module
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.llm.base import ChatModel, Completion, ModelRequest, ModelUsage, as_completion
from repl_env.llm.request_gate import REQUESTS, RequestGate
from repl_env.rlm.budget.ledger import LedgerAccount, Reservation
from repl_env.rlm.budget.usage_totals import is_count

T = TypeVar("T")

# A model that was given the tree's last seconds may give up this much before the tree's clock.
_EARLY = 0.05

# Seconds for a cancelled call to close its resources. A user's model that continues anyway must not
# delay the end of a run.
_LETTING_GO = 1.0

# Kept here, because a loop keeps only weak references to its tasks.
_open: Final[set[asyncio.Task[Any]]] = set()


@set_module("repl_env.rlm")
async def call_model(
    model: ChatModel, request: ModelRequest, account: LedgerAccount, gate: RequestGate = REQUESTS
) -> Completion:
    """Call `model`, at the expense of `account`.

    First the most that the call may take is reserved, then the call waits for the gate, then the
    model gets the request with the granted amounts. A call that fails or is cancelled with a
    reservation counts as a failed call, with the tokens that the endpoint reports.

    The answer's text may be empty, and is valid Unicode.

    Raises:
        BudgetExceeded: it does not fit into the budget, or the time of the tree ran out.
        ModelError: there is no answer. Other exceptions of a model are converted, with the name of
            their type as the kind.
    """
    with _errors_of_the_model():
        bound = model.count_tokens(request.messages_with_prefix)
        if not is_count(bound):
            raise ModelError("type", f"count_tokens gave {bound!r}, which is no count")
    reservation = await account.reserve_async(
        model=request.model or model.name,
        input_tokens=bound,
        # A limit that the model ignores bounds nothing.
        output_tokens=request.max_output_tokens if model.bounded else None,
    )
    with reservation:
        try:
            completion = await _in_time(model, _limited(request, reservation), account, gate)
        except ModelError as error:
            # a refusal, or an answer without text, costs as much as others
            reservation.fail(error.usage)
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
    """Return the model's answer, after the gate, unless the tree's time ends before."""
    try:
        async with asyncio.timeout(account.seconds_left()) as clock, gate:
            try:
                return await _answer(model, request, account)
            except ModelError as error:
                # The model may have noticed the end of the tree's time before the tree's clock did,
                # or have taken the clock's cancellation for a failure of its own.
                budget_ended = error.kind == "timeout" and _nearly_over(account)
                if budget_ended or clock.expired():
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
    """Await `asking`. A cancelled caller waits briefly for its end, and then leaves."""
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
        task.exception()  # retrieved, even if no caller waits for it any more


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
    """Return an upper bound of the answer's tokens, if the endpoint did not count them."""
    if is_count(usage.output_tokens):
        return 0
    with _errors_of_the_model():
        # The cost of a message beyond its text occurs in prompts only.
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
    """Convert exceptions of a model into ModelError."""
    try:
        yield
    except ModelError:
        raise
    # Boundary: a model may be any class, and raise anything.
    except Exception as error:
        kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
        raise ModelError(kind, str(error)) from error
