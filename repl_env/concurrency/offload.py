"""Work of ours that others decide the length of: done at once if it is short, else in a thread.

A schema and what is checked by it may be a stranger's, and the event loop has others to serve. So
such work looks at the clock: on a loop it is given up after `AT_ONCE_S` and begun anew in a thread.
Few threads, because all share one interpreter with the loop; most work never waits for one.

Functions of the user's own, rubrics for one, look at no clock and may wait: `run_in_thread`.
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

# CPU seconds on a loop: many times what a common answer takes, and no more than one turn of the
# interpreter between threads, which a loop has to wait for in any case.
AT_ONCE_S = 0.005
# Values, and characters of texts, that are gone through in less than that.
_FEW, _SHORT = 2_000, 200_000

_threads: Final = daemon_threads.DaemonThreads(2, "repl-aside")
_until: ContextVar[float | None] = ContextVar("_until", default=None)


class OffloadRequired(Exception):
    """The work is not done, and nothing has come of it: it is to be done aside."""


class BlockingCall(partial[T]):
    """A call of a user's function, as turns ask for it: plain callers wait, a loop does not."""


class Offload(partial[T]):
    """Such work, as turns (`repl_env.episode.effects`) ask for it. It changes nothing and may be
    repeated.
    """


async def offload(work: Callable[[], T]) -> T:
    """What `work()` returns. It changes nothing, and is begun again if it takes long.

    A caller that is cancelled still waits for the end of what a thread is at: nobody can have more
    than one piece of work done at a time by leaving it.
    """
    begun = _until.set(time.thread_time() + AT_ONCE_S)
    try:
        return work()
    except OffloadRequired:
        pass
    finally:
        _until.reset(begun)
    return await _to_its_end(_threads.submit(work))


async def run_in_thread(work: Callable[[], T]) -> T:
    """What `work()` returns, which is a user's and may wait: called in a thread, in this context.

    Who is cancelled waits as in `offload`: what such work is done for is nobody else's meanwhile.
    """
    return await _to_its_end(daemon_threads.begun(work))


async def _to_its_end(doing: Future[T]) -> T:
    try:
        return await asyncio.shield(asyncio.wrap_future(doing))
    except asyncio.CancelledError:
        if not doing.cancel():
            await _end(doing)
        raise


async def _end(doing: Future[Any]) -> None:
    ended = asyncio.wrap_future(doing)
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            continue  # once more; who awaits `offload` is told in the end
    ended.exception()


def check_deadline(*, long: bool = False) -> None:
    """Called by such work now and then, and before what is `long`.

    Raises TakesLong where that is to be done aside.
    """
    until = _until.get()
    if until is not None and (long or time.thread_time() > until):
        raise OffloadRequired


def check_size(value: Any) -> None:
    """Called before all of `value`, which is JSON, is gone through. Raises TakesLong likewise."""
    if _until.get() is not None and _is_large(value):
        raise OffloadRequired


def _is_large(value: Any) -> bool:
    waiting, few, short = [value], _FEW, _SHORT
    while waiting:
        each = waiting.pop()
        few -= 1
        if isinstance(each, str):
            short -= len(each)
        elif isinstance(each, dict):
            few -= len(each)
            if few > 0:
                waiting += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple)) and len(each) < few:
            waiting += each
        elif isinstance(each, (list, tuple)):
            return True
        if few <= 0 or short <= 0:
            return True
    return False
