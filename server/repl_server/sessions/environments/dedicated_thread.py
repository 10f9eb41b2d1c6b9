"""`DedicatedThread`: one thread, which does all that is arguments of it, and ends with the process at latest.

Those of `concurrent.futures` are waited for when the interpreter ends: one that hangs, in code that
is not ours, would keep a server that was told to stop.
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
    """A thread that begins with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._begun = False

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` comes to, as `repl_env.concurrency.thread_pool.capture_error` has it, behind all that came before.

        Who gives up on it does not end it.
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
        """End it once all is done; it is not waited for."""
        self._jobs.put(None)


def _run(work: Callable[[], Any], result: Future[Any]) -> None:
    if result.set_running_or_notify_cancel():
        try:
            found = capture_error(work)
        # Boundary: whatever it is, it is for who waits.
        except BaseException as error:  # noqa: BLE001
            result.set_exception(error)
        else:
            result.set_result(found)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds what it came to
