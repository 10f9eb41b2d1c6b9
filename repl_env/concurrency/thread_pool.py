"""`ThreadPool`: threads of this process, started when there is work and none is idle.

`capture_error`: what a thread does for an event loop. `capture_error_async`: what a task of the
loop does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def capture_error(work: Callable[[], T]) -> T:
    """What `work()` returns or raises; what would harm who awaits it becomes a RuntimeError.

    A StopIteration, as that of a coroutine does: a future of asyncio cannot carry it, and up to
    CPython 3.11 whoever awaits one is never told. And what is no `Exception`: a `sys.exit` would
    end the event loop with all others on it, a CancelledError says that somebody cancelled.
    """
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(_told(error)) from error


async def capture_error_async(work: Awaitable[T]) -> T:
    """What `work` comes to, likewise. That this task is cancelled is no error of `work`."""
    try:
        return await work
    except BaseException as error:
        check_carried(error)
        raise


def check_carried(error: BaseException) -> None:
    """Raise what is to be raised in place of `error`, if `capture_error_async` would."""
    if not (isinstance(error, (Exception, GeneratorExit)) or _is_cancelled(error)):
        raise RuntimeError(_told(error)) from error


def _is_cancelled(error: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


def _told(error: BaseException) -> str:
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{told}, raised by a function that others wait for"


class ThreadPool:
    """At most so many threads, whose names begin with `name`. A fork has its own."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._of: dict[int, ThreadPoolExecutor] = {}  # by process: a fork inherits no threads

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a thread do `work`, after what was submitted before if all are busy."""
        return self.threads().submit(capture_error, work)

    def threads(self) -> Executor:
        """Those of this process."""
        pool = self._of.get(os.getpid())
        if pool is None:
            made = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            pool = self._of.setdefault(os.getpid(), made)
        return pool

    def end(self) -> None:
        """Wait for what this process's threads are at, and end them; new ones start if need be."""
        pool = self._of.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown()
