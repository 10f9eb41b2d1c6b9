"""`BackgroundLoop`: an event loop in a thread, for work that blocking calls wait for.

All blocking calls of one kind share a loop, so that connections and sandboxes stay open between
calls, and so that a blocking call works inside a running loop, as in notebooks. The loop starts
with the first call and ends with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Seconds that work has to end after Ctrl-C, or at the exit of the process.
_END_TIMEOUT = 5.0
# Seconds between two checks of a waiting thread. Python's signal handlers run between bytecode
# instructions: a signal that arrives just before a wait does not interrupt the wait, and Ctrl-C
# would be noticed only when the work has ended.
_POLL_S = 1.0


class BackgroundLoop:
    """The loop of this process for one kind of work; a forked process starts its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._ends_at_exit = False

    def end_at_exit(self) -> None:
        """End at the exit of the process, after everything that registers for its exit from now
        on.
        """
        if not self._ends_at_exit:
            self._ends_at_exit = True
            atexit.register(self._end)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and return its result; Ctrl-C cancels it and waits for its
        end.

        Raises:
            RuntimeError: the caller runs on the loop itself, which would wait for itself; or the
                process is exiting and the loop has ended.
        """
        work: _Work[T] = _Work(coroutine)
        try:
            self._submit(work)
            return work.result()
        except BaseException as error:  # Ctrl-C may arrive anywhere, and the work may have begun
            self._leave(work, error)
            raise

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that ends a `with` block, and wait for it; inside a loop, use a thread.

        That loop stands still while a blocking `with` ends, so objects that belong to the loop
        cannot end meanwhile; they end when the loop continues.
        """
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            self.wait_for(coroutine)
            return
        task = here.create_task(coroutine)
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)

    def wait_with_callback(
        self,
        start: Callable[[Callable[..., Awaitable[None]]], Coroutine[Any, Any, T]],
        callback: Callable[..., object],
    ) -> T:
        """Return the result of `start(tell)`, and call `callback` in this thread for each `send`.

        `await tell(...)` returns after `callback` has returned, so that a fast sender cannot fill
        the memory. An exception of `callback` cancels the coroutine.
        """
        messages: SimpleQueue[tuple[tuple[Any, ...], Future[None]] | None] = SimpleQueue()

        async def send(*arguments: Any) -> None:
            handled: Future[None] = Future()
            messages.put((arguments, handled))
            await asyncio.wrap_future(handled)

        work: _Work[T] = _Work(start(send))
        work.outcome.add_done_callback(lambda _: messages.put(None))
        try:
            self._submit(work)
            while (each := _next_of(messages)) is not None:
                arguments, handled = each
                callback(*arguments)
                if handled.set_running_or_notify_cancel():
                    handled.set_result(None)
            return work.outcome.result()
        except BaseException as error:
            self._leave(work, error)
            raise

    def _submit(self, work: _Work[Any]) -> None:
        loop = self._of_process()
        if threading.current_thread() is loop.thread:
            work.coroutine.close()
            raise RuntimeError("a plain call would wait for itself here; await the other form")
        if loop.loop.is_closed():
            work.coroutine.close()
            raise RuntimeError("the process is about to end: there are no plain calls any more")
        loop.submit(work)

    def _leave(self, work: _Work[Any], error: BaseException) -> None:
        """Cancel `work`; after Ctrl-C, which may end the process, wait for its end.

        Work closes sessions in threads, and an exiting process starts no threads.
        """
        work.outcome.cancel()
        if isinstance(error, KeyboardInterrupt) and self._loop is not None:
            self._loop.wait_for_end(work)

    def _of_process(self) -> _Loop:
        loop = self._loop
        if loop is not None and loop.process == os.getpid():
            return loop
        if loop is not None:
            self._loop, self._lock = None, threading.Lock()
        with self._lock:
            if self._loop is None:
                self.end_at_exit()
                self._loop = _Loop(self._name)
            return self._loop

    def _end(self) -> None:
        if self._loop is not None:
            self._loop.end()


class _Work(Generic[T]):
    """A coroutine on a loop with its outcome; `task` is set once it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine = coroutine
        self.outcome: Future[T] = Future()
        self.task: asyncio.Task[T] | None = None

    def result(self) -> T:
        """Wait for the outcome."""
        # `outcome.result(timeout)` would not do: a TimeoutError may come from the work or from a
        # handler.
        over: SimpleQueue[None] = SimpleQueue()
        self.outcome.add_done_callback(lambda _: over.put(None))
        _next_of(over)
        return self.outcome.result()


def _next_of(queue: SimpleQueue[T]) -> T:
    """Wait for the next item of the queue."""
    while True:
        try:
            return queue.get(timeout=_POLL_S)
        except Empty:
            pass


class _Loop:
    """A loop and its thread."""

    def __init__(self, name: str) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: _Work[Any]) -> None:
        """Start `work` on the loop, in the context of the caller; `outcome` receives its result.

        Cancelling `outcome` cancels the coroutine, even before it has begun.
        """
        context = contextvars.copy_context()

        def start() -> None:
            work.task = self.loop.create_task(work.coroutine, context=context)
            asyncio.futures._chain_future(work.task, work.outcome)  # type: ignore[attr-defined]

        self.loop.call_soon_threadsafe(start)

    def wait_for_end(self, work: _Work[Any]) -> None:
        """Wait until the cancelled `work` has ended, for a limited time."""
        work_ended = threading.Event()

        def look() -> None:  # queued after the start of the work
            if work.task is None:
                work_ended.set()
            else:
                work.task.add_done_callback(lambda _: work_ended.set())

        if self.process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(look)
            work_ended.wait(_END_TIMEOUT)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while True:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    continue  # a task's exception belongs to its caller; other tasks go on
                break
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_TIMEOUT))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def end(self) -> None:
        """Cancel all open work and stop."""
        if self.process == os.getpid() and self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(2 * _END_TIMEOUT)


# Ends blocking `with` blocks on loops of callers; a loop itself keeps no reference to its tasks.
_ENDING: set[asyncio.Task[None]] = set()

# Runs of models and their sub-calls.
RUNS = BackgroundLoop("repl-runs")
# Clients of servers. Separate from runs: a tool that a run calls may use a client.
CLIENTS = BackgroundLoop("repl-clients")
