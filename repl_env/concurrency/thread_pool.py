"""`ThreadPool`: threads that start when work arrives and none is idle.

`capture_error` makes exceptions of a thread safe for an event loop, `capture_error_async` those of
a
task.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def capture_error(work: Callable[[], T]) -> T:
    """Return or raise the outcome of `work()`; exceptions that would harm the waiter become
    RuntimeError.

    An asyncio future cannot carry StopIteration, and up to CPython 3.11 the waiter would never
    wake. An
    exception that is not an `Exception` would do worse: `sys.exit` would end the event loop, and a
    CancelledError would claim that somebody cancelled.
    """
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(_error_text(error)) from error


async def capture_error_async(work: Awaitable[T]) -> T:
    """`capture_error` for an awaitable. Cancellation of this task is not an error of `work`."""
    try:
        return await work
    except BaseException as error:
        check_carried(error)
        raise


def check_carried(error: BaseException) -> None:
    """Raise the replacement of `error`, if `capture_error_async` would replace it."""
    if not (isinstance(error, (Exception, GeneratorExit)) or _is_cancelled(error)):
        raise RuntimeError(_error_text(error)) from error


def _is_cancelled(error: BaseException) -> bool:
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{text}, raised by a function that others wait for"


class ThreadPool:
    """Up to a maximum of threads, whose names begin with `name`. A fork has its own."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._of: dict[int, ThreadPoolExecutor] = {}  # by process: a fork inherits no threads

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread; if all are busy, after the work that was submitted before."""
        return self.threads().submit(capture_error, work)

    def threads(self) -> Executor:
        """The threads of this process."""
        pool = self._of.get(os.getpid())
        if pool is None:
            new_pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix=self._name)
            pool = self._of.setdefault(os.getpid(), new_pool)
        return pool

    def end(self) -> None:
        """Wait until the threads of this process are idle, and end them; new ones start on
        demand.
        """
        pool = self._of.pop(os.getpid(), None)
        if pool is not None:
            pool.shutdown()
