"""One event loop in a thread of this process, for runs that are begun by plain calls.

All plain runs share it, so connections and sandboxes stay warm from one to the next, and a plain
call works where a loop runs already, as in notebooks. It ends with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds that runs which are still open at the exit of the process have to end.
_END_TIMEOUT = 5.0


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `coroutine` returns, run on the background loop; Ctrl-C cancels it.

    Raises:
        RuntimeError: called on the background loop itself, which would wait for itself.
    """
    background = _of_process()
    if threading.current_thread() is background.thread:
        coroutine.close()
        raise RuntimeError("a plain call within a run would wait for itself; await the other form")
    future = background.submit(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class _Background:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._turn, name="repl-runs", daemon=True)
        self.thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `coroutine` there, in the context of the caller."""
        outcome: Future[T] = Future()
        context = contextvars.copy_context()

        def begin() -> None:
            task = self.loop.create_task(coroutine, context=context)
            asyncio.futures._chain_future(task, outcome)  # type: ignore[attr-defined]

        self.loop.call_soon_threadsafe(begin)
        return outcome

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=_END_TIMEOUT))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def end(self) -> None:
        """Cancel what is open and stop."""
        if self.process == os.getpid() and self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(2 * _END_TIMEOUT)


_lock = threading.Lock()
_background: _Background | None = None


def _of_process() -> _Background:
    """The loop of this process; a fork begins its own."""
    global _background, _lock  # noqa: PLW0603
    if _background is not None and _background.process != os.getpid():
        _background, _lock = None, threading.Lock()
    with _lock:
        if _background is None:
            _background = _Background()
            atexit.register(_background.end)
        return _background
