"""`FunctionExecutor`: runs host functions outside of the driver's thread.

A function may take minutes, while the clocks, the output and other calls of the cell go on.
"""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import GeneratorType
from typing import Any

from ...errors import RemoteProtocolError
from ...protocol.frames import MAX_BLOB
from ...protocol.messages import HostCall, HostReply
from ...protocol.values.json_conversion import elements
from ...protocol.values.json_text import dump_json, parse_arguments
from ...protocol.values.raw_arguments import Place, Raw, each_part
from ...protocol.values.utf8_text import read_text
from .function_registry import HostCallable
from .function_threads import HostThreads

# A thread starts only if none is idle. There must be enough for every open call: a function may run
# a session of its own and wait for its calls, and parents that hold all threads would deadlock.
_THREADS = 1 << 14
# Characters of an exception's message: a model reads it, and it travels in one frame.
_LONGEST_MESSAGE = 1 << 20

_built_in = vars(builtins)


def refusal(call: int, kind: str, message: str, base: str | None = None) -> HostReply:
    """Return the reply to a failed call: `kind` derives from the built-in class `base`, or is
    one.
    """
    derived = [] if base in (None, kind) else [base]
    return HostReply(call, False, dump_json([kind, message[:_LONGEST_MESSAGE], *derived]))


def failure(call: int, error: BaseException) -> HostReply:
    """Return the reply to a call whose function raised `error`."""
    kind = type(error)
    try:
        message = str(error)
    # Boundary: the class is the caller's, and without a reply the cell would wait for ever.
    except Exception as problem:  # noqa: BLE001
        message = f"<its message cannot be shown: __str__ raised {type(problem).__name__}>"
    base = next(cls.__name__ for cls in kind.__mro__ if _built_in.get(cls.__name__) is cls)
    return refusal(call, kind.__name__, message, base)


def arguments(
    call: HostCall, places: frozenset[Place] = frozenset()
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, with the raw ones in their places.

    Raises:
        RemoteProtocolError: they do not follow the protocol, or a raw one is at none of `places`.
    """
    parsed = parse_arguments(call.data)
    if not isinstance(parsed, list) or len(parsed) != 2:
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    args, kwargs = parsed
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    for place, raw in call.parts:
        holder: Any = args if type(place) is int else kwargs
        exists = place < len(args) if isinstance(place, int) else place in kwargs
        if place not in places or not exists or holder[place] is not None:
            raise RemoteProtocolError("a raw argument has no place in its call")
        holder[place] = _value(raw)
    return args, kwargs


def _value(raw: Raw) -> object:
    if isinstance(raw, tuple):
        return [part and _value(part) for part in raw]
    if raw.kind == "bytes":
        return raw.data
    try:
        return read_text(raw.data)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a raw text is not UTF-8") from None


def size(call: HostCall) -> int:
    """The size of a call's arguments in bytes."""
    return len(call.data) + sum(len(part.data) for _, raw in call.parts for part in each_part(raw))


def success(call: HostCall, value: object) -> HostReply:
    """Return the reply that carries `value`, or an error reply if JSON cannot.

    Raises:
        the exception of the body of a function that is a generator.
    """
    if isinstance(value, GeneratorType):
        value = elements(value)
    try:
        data = dump_json(value)
    except (TypeError, ValueError) as error:
        kind = "ValueError" if isinstance(error, ValueError) else "TypeError"
        return refusal(call.call, kind, f"{call.name} returned what JSON cannot carry: {error}")
    if len(data) > MAX_BLOB:
        return refusal(call.call, "ValueError", f"{call.name} returned {len(data):,} bytes of JSON")
    return HostReply(call.call, True, data)


class CallReplies:
    """The replies of finished calls, and a descriptor that is readable while there are any.

    A child that the host forks during a cell shares the descriptor, which wakes its parent, and may
    have a copy of the lock that nobody will release: in the child this takes no reply.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: deque[tuple[int, HostReply]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, cell: int, reply: HostReply) -> None:
        """Add a reply for cell number `cell`; called by the thread that ran the function."""
        with self._lock:
            if not self._closed:
                self._done.append((cell, reply))
                os.eventfd_write(self.wake_fd, 1)

    def take(self) -> list[tuple[int, HostReply]]:
        """Return the replies since the last call, each with its cell."""
        if os.getpid() != self._pid:
            return []
        with self._lock:
            try:
                os.eventfd_read(self.wake_fd)
            except BlockingIOError:
                return []
            replies = list(self._done)
            self._done.clear()
            return replies

    def close(self) -> None:
        """Accept no more replies."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.wake_fd)


class RunningCall:
    """A call in progress of a host function, with `size` bytes of arguments.

    If the caller leaves, a coroutine is cancelled, wherever it runs; a plain function that has not
    begun never does, and one that has goes on.
    """

    __slots__ = ("_lock", "_stop", "ended", "size")

    def __init__(self, size: int) -> None:
        self.size = size
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
