"""`DedicatedThread`: a daemon thread that runs calls one after another.

The interpreter waits at exit for threads of `concurrent.futures`: a hanging call of a custom
environment would keep a server from stopping.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from repl_env.concurrency.thread_pool import capture_error

T = TypeVar("T")

_Job: TypeAlias = Callable[[], None]


class DedicatedThread:
    """A daemon thread, started by the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._begun = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a call, with errors as in `repl_env.concurrency.thread_pool.capture_error`.

        Cancelling the future does not stop a call that has started.
        """
        result: Future[T] = Future()
        self._jobs.put(partial(_run, work, result))
        if not self._begun:
            self._begun = True
            threading.Thread(
                target=_serve, args=(self._jobs,), name=self._name, daemon=True
            ).start()
        return asyncio.wrap_future(result)

    def end(self) -> None:
        """End the thread after the queued calls, without waiting for it."""
        self._jobs.put(None)


def _run(work: Callable[[], Any], result: Future[Any]) -> None:
    if result.set_running_or_notify_cancel():
        try:
            found = capture_error(work)
        # Boundary: the caller gets every error of the call.
        except BaseException as error:  # noqa: BLE001
            result.set_exception(error)
        else:
            result.set_result(found)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # a job refers to its result
