"""`BackgroundLoop`: an event loop in a thread of this process, for work that plain calls wait for.

All plain calls of one kind share it, so that what they use (connections, sandboxes) stays warm and
alive from one to the next, and a plain call works where a loop runs already, as in notebooks. It
begins with the first call, and ends with the process.
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

# Seconds that work has to end which was left by Ctrl-C, or is still open at the process's exit.
_END_TIMEOUT = 5.0
# Seconds between two looks of who waits for work. Python's handlers run between two of its own
# instructions: a signal that strikes after the last one before a wait does not end that, and a
# Ctrl-C of that moment would be seen when the work has ended.
_A_LOOK = 1.0


class BackgroundLoop:
    """The loop of this process for one kind of work; a fork begins its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._ends_at_exit = False

    def end_at_exit(self) -> None:
        """End with the process: after what is registered for its exit from now on."""
        if not self._ends_at_exit:
            self._ends_at_exit = True
            atexit.register(self._end)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` returns, run on the loop; Ctrl-C cancels it and waits for its end.

        Raises:
            RuntimeError: called on the loop itself, which would wait for itself; or at the exit of
                the process, when the loop has ended.
        """
        work: _Work[T] = _Work(coroutine)
        try:
            self._submit(work)
            return work.result()
        except BaseException as error:  # Ctrl-C strikes anywhere, and the work may have begun
            self._leave(work, error)
            raise

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run what ends a plain `with`, and wait for it; in a thread with a loop, have that do it.

        Such a loop stands still while a plain block ends, so that what belongs to it could not be
        ended meanwhile: it is when the loop goes on.
        """
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            self.wait_for(coroutine)
            return
        task = here.create_task(coroutine)
        _ENDING.add(task)
        task.add_done_callback(_ENDING.discard)

    def wait_hearing(
        self,
        begin: Callable[[Callable[..., Awaitable[None]]], Coroutine[Any, Any, T]],
        hear: Callable[..., object],
    ) -> T:
        """What the coroutine of `begin(tell)` returns; `hear` gets what it tells, in this thread.

        `tell` is awaited until `hear` has returned: who tells faster than is heard would fill the
        memory. What `hear` raises cancels the coroutine.
        """
        told: SimpleQueue[tuple[tuple[Any, ...], Future[None]] | None] = SimpleQueue()

        async def tell(*facts: Any) -> None:
            heard: Future[None] = Future()
            told.put((facts, heard))
            await asyncio.wrap_future(heard)

        work: _Work[T] = _Work(begin(tell))
        work.outcome.add_done_callback(lambda _: told.put(None))
        try:
            self._submit(work)
            while (each := _next_of(told)) is not None:
                facts, heard = each
                hear(*facts)
                if heard.set_running_or_notify_cancel():
                    heard.set_result(None)
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
        """Cancel `work`; if that is Ctrl-C, which may end the process, wait for its end.

        It closes sessions in threads, and a process that is about to end begins none.
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
    """A coroutine for a loop, and what it comes to; `task` once it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine = coroutine
        self.outcome: Future[T] = Future()
        self.task: asyncio.Task[T] | None = None

    def result(self) -> T:
        """Wait for what it comes to."""
        # Not with a time-out of `outcome.result`: a TimeoutError may be the work's, or a handler's.
        over: SimpleQueue[None] = SimpleQueue()
        self.outcome.add_done_callback(lambda _: over.put(None))
        _next_of(over)
        return self.outcome.result()


def _next_of(queue: SimpleQueue[T]) -> T:
    """Wait for what is put there next."""
    while True:
        try:
            return queue.get(timeout=_A_LOOK)
        except Empty:
            pass


class _Loop:
    """A loop and its thread."""

    def __init__(self, name: str) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self.thread.start()

    def submit(self, work: _Work[Any]) -> None:
        """Begin `work` there, in the context of the caller; `outcome` gets what it comes to.

        Whoever cancels `outcome` cancels the coroutine, whether it has begun by then or not.
        """
        context = contextvars.copy_context()

        def begin() -> None:
            work.task = self.loop.create_task(work.coroutine, context=context)
            asyncio.futures._chain_future(work.task, work.outcome)  # type: ignore[attr-defined]

        self.loop.call_soon_threadsafe(begin)

    def wait_for_end(self, work: _Work[Any]) -> None:
        """Wait until `work`, which was cancelled, has ended; not for ever, it may go on."""
        ended = threading.Event()

        def look() -> None:  # behind whatever begins it
            if work.task is None:
                ended.set()
            else:
                work.task.add_done_callback(lambda _: ended.set())

        if self.process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(look)
            ended.wait(_END_TIMEOUT)

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while True:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    continue  # a task's, and its caller's to be told of; the others go on
                break
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


# What ends plain blocks on loops of others; a loop itself does not keep its tasks.
_ENDING: set[asyncio.Task[None]] = set()

# Runs of models and their sub-calls.
RUNS = BackgroundLoop("repl-runs")
# Clients of servers. Not those of the runs: a tool that a run calls may use a client.
CLIENTS = BackgroundLoop("repl-clients")
