"""`FunctionExecutor`: runs host functions outside of the driver's thread.

A function may take minutes, while the clocks, the output and other calls of the cell go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ...protocol.messages import HostCall, HostReply
from ...protocol.values.raw_arguments import Place
from .call_codec import arguments, failure, refusal, success
from .function_registry import HostCallable
from .function_threads import HostThreads
from .running_call import RunningCall

# A thread starts only if none is idle. There must be enough for every open call: a function may run
# a session of its own and wait for its calls, and parents that hold all threads would deadlock.
_THREADS = 1 << 14
Done = Callable[[HostReply], None]


class FunctionExecutor:
    """Runs host functions: plain ones in threads, coroutine functions on a loop of its own.

    One for each sandbox, shared by its sessions; threads and loop start when first needed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: HostThreads | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(
        self,
        function: HostCallable,
        call: HostCall,
        places: frozenset[Place],
        running: RunningCall,
        done: Done,
    ) -> None:
        """Run `function` with the arguments of `call`, and pass its reply to `done`.

        Raises:
            RemoteProtocolError: the arguments do not follow the protocol.
        """
        args, kwargs = arguments(call, places)
        context = contextvars.copy_context()

        def run() -> None:
            if running.ended:
                return
            try:
                value = context.run(function, *args, **kwargs)
                if inspect.isawaitable(value):
                    loop = self._running_loop()
                    loop.call_soon_threadsafe(_begin, loop, value, call, running, done)
                    return
                reply = success(call, value)
            # Boundary: the session receives whatever the host's function raises, as text, and also
            # what would end a process, such as SystemExit; otherwise the cell would wait for ever.
            except BaseException as error:  # noqa: BLE001
                reply = failure(call.call, error)
            with suppress(RuntimeError, OSError):  # no caller waits for it any more
                done(reply)

        self._of_host().do(run)

    def wait_for(
        self, awaited: Awaitable[object], call: HostCall, running: RunningCall, done: Done
    ) -> None:
        """Await `awaited`, and pass its result, as the reply to `call`, to `done`."""
        loop = self._running_loop()
        loop.call_soon_threadsafe(_begin, loop, awaited, call, running, done)

    def _of_host(self) -> HostThreads:
        with self._lock:
            if self._threads is None:
                self._threads = HostThreads(_THREADS, "repl-host")
            return self._threads

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "repl-host-loop"
                threading.Thread(
                    target=_run_loop, args=(self._loop,), name=name, daemon=True
                ).start()
            return self._loop

    def close(self) -> None:
        """Take no more calls; calls in progress are not waited for, and their replies are
        dropped.
        """
        with self._lock:
            if self._threads is not None:
                self._threads.close()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run `loop` until it is stopped; then cancel its tasks."""
    try:
        while True:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # the exception of a task, which has it; other tasks go on
            break
        unfinished = asyncio.all_tasks(loop)
        for task in unfinished:
            task.cancel()
        if unfinished:
            loop.run_until_complete(asyncio.wait(unfinished))
    finally:
        loop.close()


def _begin(
    loop: asyncio.AbstractEventLoop, value: Any, call: HostCall, running: RunningCall, done: Done
) -> None:
    """On `loop`: wrap the result of a function as a task, unless the caller has left."""
    if running.ended:
        if inspect.iscoroutine(value):
            value.close()  # avoids the warning that it was never awaited
        return
    _spawn(loop, lambda: value, call, running, done)


def _spawn(
    loop: asyncio.AbstractEventLoop,
    begin: Callable[[], Any],
    call: HostCall,
    running: RunningCall,
    done: Done,
) -> None:
    """On `loop`: await what `begin` returns, in a task that ends with the call."""
    task = loop.create_task(_finish(begin, call, done))
    # Kept here, because a loop has only weak references to its tasks.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    running.stop_by(partial(_cancel, loop, task))


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the loop is closed, and the task has ended with it


async def _finish(begin: Callable[[], Any], call: HostCall, done: Done) -> None:
    try:
        reply = success(call, await begin())
    except asyncio.CancelledError:
        # Cancelled because the call ended, so the reply is dropped; or by the host itself.
        done(refusal(call.call, "Cancelled", "the host has cancelled this call"))
        raise
    # Boundary: as in FunctionExecutor.start. KeyboardInterrupt, which hits the main thread, is the
    # caller's too.
    except BaseException as error:
        done(failure(call.call, error))
        main = threading.current_thread() is threading.main_thread()
        if isinstance(error, KeyboardInterrupt) and main:
            raise
        return
    done(reply)


class LoopFunctionExecutor(FunctionExecutor):
    """For async sessions: coroutine functions run on the loop of the session's caller."""

    def start(
        self,
        function: HostCallable,
        call: HostCall,
        places: frozenset[Place],
        running: RunningCall,
        done: Done,
    ) -> None:
        """Run `function`, on the running loop if it is a coroutine function."""
        if not inspect.iscoroutinefunction(function):
            super().start(function, call, places, running, done)
            return
        args, kwargs = arguments(call, places)
        # Called in the task: wrong arguments then fail where its other errors are caught.
        begin = partial(function, *args, **kwargs)
        _spawn(asyncio.get_running_loop(), begin, call, running, done)

    def wait_for(
        self, awaited: Awaitable[object], call: HostCall, running: RunningCall, done: Done
    ) -> None:
        """As `FunctionExecutor.wait_for`, on the running loop."""
        _spawn(asyncio.get_running_loop(), lambda: awaited, call, running, done)


_tasks: set[asyncio.Task[None]] = set()
