"""Effects: the work of one call on an environment, written once for blocking and async drivers.

An effect generator yields functions without arguments, which the driver calls outside, and receives
their results. `run_blocking` calls them directly; `run_async` also awaits them. The blocking driver
uses no event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any, TypeAlias, TypeVar

from repl_env.concurrency.offload import BlockingCall, Offload, offload, run_in_thread

T = TypeVar("T")
Effects: TypeAlias = Generator[Callable[[], Any], Any, T]


def run_blocking(effects: Effects[T]) -> T:
    """Perform all effects of the generator and return its result."""
    try:
        request = next(effects)
        while True:
            try:
                reply = request()
            # Any exception belongs to the generator, which handles or reraises it.
            except BaseException as error:  # noqa: BLE001
                request = effects.throw(error)
            else:
                request = effects.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(effects: Effects[T]) -> T:
    """Perform all effects; await awaitables and offloaded work."""
    try:
        request = next(effects)
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
                request = effects.throw(error)
            else:
                request = effects.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result
