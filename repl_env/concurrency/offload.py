"""Internal work of unknown length: on the event loop if it is short, else in a thread.

A schema and the value that it checks may come from strangers, and the event loop serves others too.
Such work watches the clock: on a loop it stops after `AT_ONCE_S` and starts again in a thread. The
threads are few, because they share one interpreter with the loop; most work never needs one.

Functions of users, such as rubrics, do not watch the clock and may wait: see `run_in_thread`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from repl_env.concurrency import daemon_threads

T = TypeVar("T")

# CPU seconds on a loop: many times the cost of a common answer, and less than the switch interval
# of the interpreter, which a loop has to wait for in any case.
AT_ONCE_S = 0.005
# Values, and characters of text, that take less than that.
_MAX_VALUES, _MAX_CHARACTERS = 2_000, 200_000

_threads: Final = daemon_threads.DaemonThreads(2, "repl-aside")
_until: ContextVar[float | None] = ContextVar("_until", default=None)


class OffloadRequired(Exception):
    """Raised by work that is too long for the event loop; the caller repeats it in a thread."""


class BlockingCall(partial[T]):
    """A blocking call of a user's function, requested by an effect: drivers of loops use a
    thread.
    """


class Offload(partial[T]):
    """Repeatable internal work without side effects, requested by an effect."""


async def offload(work: Callable[[], T]) -> T:
    """Return the result of `work()`, which has no side effects and restarts in a thread if it is
    long.

    A cancelled caller still waits until the thread is done, so that nobody can occupy several
    threads by
    cancelling.
    """
    token = _until.set(time.thread_time() + AT_ONCE_S)
    try:
        return work()
    except OffloadRequired:
        pass
    finally:
        _until.reset(token)
    return await _to_its_end(_threads.submit(work))


async def run_in_thread(work: Callable[[], T]) -> T:
    """Return the result of a user's `work()`, called in a thread with this context.

    A cancelled caller waits as in `offload`: the state that the work uses belongs to it meanwhile.
    """
    return await _to_its_end(daemon_threads.start_in_thread(work))


async def _to_its_end(doing: Future[T]) -> T:
    try:
        return await asyncio.shield(asyncio.wrap_future(doing))
    except asyncio.CancelledError:
        if not doing.cancel():
            await _end(doing)
        raise


async def _end(doing: Future[Any]) -> None:
    future = asyncio.wrap_future(doing)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # cancelled again; the caller of `offload` gets the cancellation at the end
    future.exception()


def check_deadline(*, long: bool = False) -> None:
    """Check the clock; called by such work at intervals, and before a step that is `long`.

    Raises:
        OffloadRequired: the work has to run in a thread.
    """
    until = _until.get()
    if until is not None and (long or time.thread_time() > until):
        raise OffloadRequired


def check_size(value: Any) -> None:
    """Check the size of the JSON `value` before a traversal; raises as `check_deadline`."""
    if _until.get() is not None and _is_large(value):
        raise OffloadRequired


def _is_large(value: Any) -> bool:
    waiting, values_left, characters_left = [value], _MAX_VALUES, _MAX_CHARACTERS
    while waiting:
        each = waiting.pop()
        values_left -= 1
        if isinstance(each, str):
            characters_left -= len(each)
        elif isinstance(each, dict):
            values_left -= len(each)
            if values_left > 0:
                waiting += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple)) and len(each) < values_left:
            waiting += each
        elif isinstance(each, (list, tuple)):
            return True
        if values_left <= 0 or characters_left <= 0:
            return True
    return False
