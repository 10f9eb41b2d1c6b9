"""Turns: the work of one call on an environment, written once for plain and asynchronous callers.

A turn is a generator. It yields what must be done outside, as a function without arguments, and is
sent what that came to. `run_blocking` does these things on the spot; `run_async` also awaits them.
No
event loop is involved in a plain turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, TypeAlias, TypeVar

from repl_env.concurrency.offload import BlockingCall, Offload, offload, run_in_thread

T = TypeVar("T")
Effects: TypeAlias = Generator[Callable[[], Any], Any, T]


def run_blocking(turn: Effects[T]) -> T:
    """Do everything that `turn` asks for and return what it returns."""
    try:
        request = next(turn)
        while True:
            try:
                reply = request()
            # Whatever happened belongs to the turn, which handles it or lets it out again.
            except BaseException as error:  # noqa: BLE001
                request = turn.throw(error)
            else:
                request = turn.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(turn: Effects[T]) -> T:
    """The same, awaiting what can be awaited, and what is to be done aside."""
    try:
        request = next(turn)
        while True:
            try:
                if isinstance(request, Offload):
                    reply = offload(request)
                else:
                    reply = (
                        run_in_thread(request) if isinstance(request, BlockingCall) else request()
                    )
                if type(reply) is CoroutineType or inspect.isawaitable(reply):
                    reply = await reply
            except BaseException as error:  # noqa: BLE001 - as above; cancellation too
                request = turn.throw(error)
            else:
                request = turn.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
