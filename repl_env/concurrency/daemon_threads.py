"""Threads for the functions of users that block, for as many calls as are open.

There must be one for each open call: a function may begin a run of its own and wait for calls of
that, and parents that held all threads would wait for ever. How many are open at the same time is
the callers' to limit.
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
    """At most so many threads, whose names begin with `name`. A fork has its own.

    The process ends whatever they are at: it waits for those of a `ThreadPoolExecutor`, and who
    pressed Ctrl-C in a call that blocks would have to wait for its end. They are never ended, so
    this is for what lives as long as the process. As the engine's `HostThreads`, which the
    vocabulary of the environment may not import, and which are closed.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a thread do `work`, after what was submitted before if all are busy."""
        future: Future[T] = Future()
        with self._changed:
            # Before it is put there: what no thread could be started for is nobody's later.
            if len(self._waiting) >= self._idle and self._count < self._most:
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._count += 1
                self._idle += 1  # until it takes its first work
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
            del work  # what it was about is not kept until there is more
            with self._changed:
                self._idle += 1


_threads: Final = DaemonThreads(1 << 14, "repl-function")


def begun(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """`function(*arguments)`, begun in a thread with the caller's context."""
    context = contextvars.copy_context()
    return _threads.submit(lambda: context.run(function, *arguments))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """What `function(*arguments)` returns, called in a thread with this task's context."""
    return await asyncio.wrap_future(begun(function, *arguments))


def _do(work: Callable[[], T], future: Future[T]) -> None:
    """Do `work` for `future`, unless that was cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = capture_error(work)
    # Boundary: `capture_error` has made an `Exception` of whatever it is, for who waits to be told.
    except Exception as error:  # noqa: BLE001
        future.set_exception(error)
    else:
        future.set_result(result)
