"""Threads for blocking functions of users, one for each open call.

A function may start a run and wait for calls of that run: with fewer threads than open calls,
parents could hold all threads and wait forever. Callers limit the number of open calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from repl_env.concurrency.thread_pool import capture_error

T = TypeVar("T")


class DaemonThreads:
    """Up to a maximum of daemon threads, whose names begin with `name`. A fork has its own.

    The process exits without waiting for these threads. It would wait for those of a
    `ThreadPoolExecutor`, so that Ctrl-C in a blocking call would take effect only after the call.
    The
    threads never end, so they suit objects that live as long as the process. The engine's
    `HostThreads`
    are similar but closable, and this module may not import the engine.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread; if all are busy, after the work that was submitted before."""
        future: Future[T] = Future()
        with self._changed:
            # Start the thread first: if no thread can start, no other thread should find the work.
            if len(self._waiting) >= self._idle and self._count < self._max_threads:
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._count += 1
                self._idle += 1  # busy until it takes its first work
            self._waiting.append(partial(_do, work, future))
            self._changed.notify()
        return future

    def _begin_anew(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = 0
        self._idle = 0

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                work = self._waiting.popleft()
                self._idle -= 1
            work()
            del work  # drop references while idle
            with self._changed:
                self._idle += 1


_threads: Final = DaemonThreads(1 << 14, "repl-function")


def start_in_thread(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start `function(*arguments)` in a thread with the caller's context; return its future."""
    context = contextvars.copy_context()
    return _threads.submit(lambda: context.run(function, *arguments))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run `function(*arguments)` in a thread with this task's context and return its result."""
    return await asyncio.wrap_future(start_in_thread(function, *arguments))


def _do(work: Callable[[], T], future: Future[T]) -> None:
    """Run `work` for `future`, unless the future was cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = capture_error(work)
    # Boundary: `capture_error` turns any exception into an `Exception` for the waiting caller.
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)
