"""Calls of a cell to the host: handled, run in threads or on the loop, answered."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from ..errors import RemoteProtocolError
from ..host.links import write_end
from ..protocol.messages import MEMFD, STREAMS, Answered, HostCall, HostReply
from ..protocol.values import Place
from ..worker.streams import LENGTH, PAGE, TEXT
from .host_functions import (
    CallReplies,
    FunctionRegistry,
    HostCallable,
    arguments,
    failure,
    refusal,
    size,
    success,
)
from .io import SessionIO
from .output import History, OutputCapture
from .running_cell import Accept, CellClocks, RunningCell

# `HostThreads`: threads for plain host functions.


class HostThreads:
    """At most `max_threads` threads, whose names begin with `name`; each starts when none is idle.

    The process can end while they work. It would wait for those of a `ThreadPoolExecutor`, so a
    Ctrl-C during a blocking call would have to wait for its end.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._count = self._idle = 0
        self._closed = False

    def do(self, work: Callable[[], None]) -> None:
        """Run `work`, which raises nothing, in a thread; after `close` it is dropped.

        Raises:
            RuntimeError: the system cannot start another thread.
        """
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) >= self._idle and self._count < self._max_threads:
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._count += 1
                self._idle += 1  # until it takes its first work
            self._waiting.append(work)
            self._changed.notify()

    def close(self) -> None:
        """Drop the work that waits. Threads end after the work in progress, and are not waited
        for.
        """
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # releases the work while the thread waits
            with self._changed:
                self._idle += 1

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft()


# `page`: replies to requests for earlier output, by `_out`, without leaving the driver.

# Bytes of replies that a worker may leave unread: sixteen threads may read pages at once, and one
# chunk from a worker can request hundreds.
_MAX_PAGED = 16 * PAGE
# Bytes of a call's arguments: three numbers and the name of a stream.
_MAX_ARGUMENTS = 1 << 10


def page(history: History, call: HostCall, unread: int) -> HostReply:
    """Return the reply to a PAGING call of a worker with `unread` bytes of earlier replies.

    Raises:
        RemoteProtocolError: the arguments are not those that `_out` sends.
    """
    if len(call.data) > _MAX_ARGUMENTS or call.parts:
        _bad_paging(call)
    args, _ = arguments(call)
    if unread > _MAX_PAGED:
        return refusal(call.call, "TooManyCalls", "earlier pages are not read yet")
    return PAGING[call.name](history, call, args)


def _length(history: History, call: HostCall, args: list[Any]) -> HostReply:
    match args:
        case [int(cell), str(stream)]:
            return success(call, history.length(cell, stream))
    _bad_paging(call)


def _text(history: History, call: HostCall, args: list[Any]) -> HostReply:
    match args:
        case [int(cell), str(stream), int(start), int(stop)] if stop - start <= PAGE:
            return success(call, history.text(cell, stream, start, stop))
    _bad_paging(call)


def _bad_paging(call: HostCall) -> NoReturn:
    raise RemoteProtocolError(f"arguments of {call.name}")


# A name that no host function can have.
PAGING: dict[str, Callable[[History, HostCall, list[Any]], HostReply]] = {
    LENGTH: _length,
    TEXT: _text,
}


# `RunningCall`: one call in progress of a host function, which can be stopped.

_monotonic = time.monotonic


class Stopwatch:
    """A context in which a function of the host runs for the cell of `clocks`, in any thread."""

    __slots__ = ("_clocks", "_cpu_seconds")

    def __init__(self, clocks: CellClocks, cpu_seconds: Callable[[], float]) -> None:
        self._clocks = clocks
        self._cpu_seconds = cpu_seconds

    def __enter__(self) -> None:
        self._clocks.function_begins(_monotonic(), self._cpu_seconds())

    def __exit__(self, *raised: object) -> None:
        self._clocks.function_ends(_monotonic(), self._cpu_seconds())


class RunningCall:
    """A call in progress of a host function, with `size` bytes of arguments, timed by `stopwatch`.

    If the caller leaves, a coroutine is cancelled, wherever it runs; a plain function that has not
    begun never does, and one that has goes on.
    """

    __slots__ = ("_lock", "_stop", "ended", "size", "stopwatch")

    def __init__(self, size: int, stopwatch: Stopwatch) -> None:
        self.size = size
        self.stopwatch = stopwatch
        self.ended = False
        self._stop: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Set the function that stops the call; it is called at once if the call was ended
        meanwhile.
        """
        with self._lock:
            if not self.ended:
                self._stop = stop
                return
        stop()

    def end(self) -> None:
        """Stop the call: no caller waits for it any more. From any thread; idempotent."""
        with self._lock:
            self.ended = True
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()


# `FunctionExecutor`: runs host functions outside of the driver's thread.
#
# A function may take minutes, while the clocks, the output and other calls of the cell go on.

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
                with running.stopwatch:
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
    task = loop.create_task(_finish(begin, call, running, done))
    # Kept here, because a loop has only weak references to its tasks.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    running.stop_by(partial(_cancel, loop, task))


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the loop is closed, and the task has ended with it


async def _finish(
    begin: Callable[[], Any], call: HostCall, running: RunningCall, done: Done
) -> None:
    try:
        with running.stopwatch:
            value = await begin()
        reply = success(call, value)
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


# `OpenCalls`: the open host calls of the running cell, and their replies.

# The number of calls that one session may have open; the host refuses another one.
MAX_OPEN_CALLS = 256
# Bytes of arguments that the open calls of one session may have together, likewise.
MAX_OPEN_BYTES = 256 << 20


class OpenCalls:
    """The open calls of one session; `registry` has its functions, `executor` runs them."""

    def __init__(self, registry: FunctionRegistry, executor: FunctionExecutor) -> None:
        self.registry = registry
        self.executor = executor
        # Made when first needed: a descriptor for each session, and one more to wait for.
        self._replies = CallReplies() if registry.rows else None
        self.running: dict[int, RunningCall] = {}  # by call number

    @property
    def reply_fds(self) -> tuple[int, ...]:
        """The descriptors that are readable while there are `replies`."""
        return () if self._replies is None else (self._replies.wake_fd,)

    def refused(self, call: HostCall) -> HostReply | None:
        """Return the reason why `call` cannot be opened; None if it can."""
        if call.name not in self.registry.functions or self._replies is None:
            return refusal(call.call, "NameError", f"the host offers no function {call.name!r}")
        if len(self.running) >= MAX_OPEN_CALLS:
            message = f"{MAX_OPEN_CALLS} calls to the host are open"
            return refusal(call.call, "TooManyCalls", message)
        if sum(each.size for each in self.running.values()) + size(call) > MAX_OPEN_BYTES:
            message = f"open calls to the host have arguments of {MAX_OPEN_BYTES:,} bytes"
            return refusal(call.call, "TooManyCalls", message)
        return None

    def begin(self, call: HostCall, cell: int, stopwatch: Stopwatch) -> None:
        """Run the host function that `cell` calls, after `refused` returned None.

        Raises:
            RemoteProtocolError: the arguments do not follow the protocol.
        """
        assert self._replies is not None
        self.running[call.call] = running = RunningCall(size(call), stopwatch)
        function, places = self.registry.functions[call.name], self.registry.places(call.name)
        put = functools.partial(self._replies.put, cell)
        self.executor.start(function, call, places, running, put)

    def wait_for(
        self, awaited: Awaitable[None], call: HostCall, size: int, stopwatch: Stopwatch
    ) -> None:
        """Await `awaited`, whose result is the reply to `call`."""
        if self._replies is None:
            self._replies = CallReplies()
        self.running[call.call] = running = RunningCall(size, stopwatch)
        put = functools.partial(self._replies.put, call.cell)
        self.executor.wait_for(awaited, call, running, put)

    def replies(self, cell: int) -> list[HostReply]:
        """The replies of finished calls, unless the cell that made them is over.

        Call numbers start again with each worker; only together with the cell they identify a call.
        """
        if self._replies is None:
            return []
        finished = [reply for of, reply in self._replies.take() if of == cell]
        return [reply for reply in finished if self.running.pop(reply.call, None) is not None]

    def end(self) -> list[int]:
        """End all open calls; return their numbers."""
        numbers = list(self.running)
        for running in self.running.values():
            running.end()
        self.running.clear()
        return numbers

    def close(self) -> None:
        """End all open calls, and accept no more replies."""
        for running in list(self.running.values()):
            running.end()
        if self._replies is not None:
            self._replies.close()


# `HostCallHandler`: the calls of a cell to the host, and the replies.
#
# Host functions, answers, pages of earlier output, and descriptors that the worker lacks.

_CELL_ENDED = "the cell that made this call has ended"


class HostCallHandler:
    """The calls of one session. `count`: calls of host functions so far."""

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        open_calls: OpenCalls,
        output: OutputCapture,
        on_answer: Accept | None,
    ) -> None:
        self._io, self._cell, self._output = io, cell, output
        self.open_calls = open_calls
        self.on_answer = on_answer
        self.count = 0

    def take(self, call: HostCall) -> None:
        """Start the call, or refuse it.

        Raises:
            RemoteProtocolError: the engine's own worker never sends such a call.
        """
        if call.name == MEMFD:
            self._io.attach_memfd(call)
        elif call.name == STREAMS:
            self._send_streams(call)
        elif not self._cell.is_running(call.cell):
            self._refuse(call.call, "Cancelled", _CELL_ENDED)
        elif call.call in self.open_calls.running:
            raise RemoteProtocolError("a call number is used twice")
        elif call.name in PAGING:
            self._io.send(page(self._output.history, call, len(self._io.send_buffer)))
        else:
            self._begin(call)

    def _begin(self, call: HostCall) -> None:
        refused = self.open_calls.refused(call)
        if refused is not None:
            self._io.send(refused)
            return
        self.open_calls.begin(call, self._cell.number, self._stopwatch())
        self.count += 1

    def take_answer(self, answered: Answered) -> None:
        """Keep an answer of the cell, refuse it, or ask `on_answer`.

        Raises:
            RemoteProtocolError: the engine's own worker never sends such an answer.
        """
        if not self._cell.is_running(answered.cell):
            self._refuse(answered.call, "Cancelled", "the cell that answered has ended")
            return
        if answered.call in self.open_calls.running:
            raise RemoteProtocolError("a call number is used twice")
        try:
            verdict = self._cell.answers.offer(answered, self.on_answer)
        except ValueError as error:
            self._refuse(answered.call, "ValueError", str(error))
            return
        if verdict is None:
            self._io.send(HostReply(answered.call, True, b"null"))
            return
        call = HostCall(answered.call, self._cell.number, "on_answer", b"")
        self.open_calls.wait_for(verdict, call, len(answered.answer.text), self._stopwatch())
        self._io.set_reply_fds(self.open_calls.reply_fds)

    def reply(self) -> None:
        """Send the replies of functions that have ended."""
        cell = self._cell
        for reply in self.open_calls.replies(cell.number):
            cell.answers.decided(reply.call, reply.ok)
            self._io.send(reply)

    def cancel_open(self) -> None:
        """End the open calls of the cell, which is over."""
        if not self.open_calls.running:
            return
        self._cell.answers.leave_undecided()
        for call in self.open_calls.end():
            if not self._io.worker.dead:
                self._refuse(call, "Cancelled", _CELL_ENDED)

    def _send_streams(self, call: HostCall) -> None:
        """Send the worker its standard output and error again, which code has closed.

        A worker that does not read them cannot get more.
        """
        late = call.cell != self._cell.number or self._cell.result is not None
        if late or not self._io.send_buffer.is_read():
            self._refuse(call.call, "Cancelled", "there are no streams now")
            return
        links = self._io.links
        descriptors: list[int] = []
        try:
            for stream, fd in enumerate((links.stdout, links.stderr), 1):
                descriptors.append(write_end(fd, stream))
            self._io.send(HostReply(call.call, True, b"null"), descriptors)
        except OSError as error:
            self._refuse(call.call, "OSError", f"{error.strerror}")
        finally:
            for fd in descriptors:
                os.close(fd)

    def _refuse(self, call: int, kind: str, message: str) -> None:
        self._io.send(refusal(call, kind, message))

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self._cell.start_clocks(), self._io.worker.cpu_seconds)
