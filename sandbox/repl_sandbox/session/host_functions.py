"""Functions that the host offers to a session: checked when given, run off the driver's thread.

Off its thread, because a function may take minutes while the cell's clocks, its output and its
other calls go on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import keyword
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from ..errors import RemoteProtocolError
from ..wire.frames import MAX_BLOB
from ..wire.messages import Call, Reply, dump_json, parse_json

HostFunction: TypeAlias = Callable[..., Any]

# Threads start only when none is idle. There must be enough for every open call: a function may run
# a session of its own and wait for calls of that, and parents that hold all threads would deadlock.
_THREADS = 1 << 14
# Calls that one session may have open; a further one is refused at once.
MAX_OPEN_CALLS = 256
# help(f) in the session; longer texts are cut.
_MAX_DOC = 2000


def check(functions: Mapping[str, HostFunction] | None) -> dict[str, HostFunction]:
    """`functions` as a dict, or TypeError / ValueError naming what is wrong with `host`."""
    if functions is None:
        return {}
    if not isinstance(functions, Mapping):
        raise TypeError(f"host must be a dict of functions, not {type(functions).__name__}")
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            raise TypeError(f"host[{name!r}] must be a function under a str")
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise ValueError(f"host: {name!r} cannot name a function in a session")
    return dict(functions)


def signatures(functions: Mapping[str, HostFunction]) -> tuple[tuple[str, str], ...]:
    """Name and docstring of each function, as the session is told."""
    return tuple(
        (name, (inspect.getdoc(function) or "")[:_MAX_DOC]) for name, function in functions.items()
    )


def refusal(call: int, kind: str, message: str) -> Reply:
    """The reply to a call that failed."""
    return Reply(call, False, dump_json([kind, message]))


def arguments(call: Call) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call; RemoteProtocolError if they are not what the protocol says."""
    parsed = parse_json(call.data)
    if not isinstance(parsed, list) or len(parsed) != 2:
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    args, kwargs = parsed
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    return args, kwargs


def success(call: Call, value: object) -> Reply:
    """The reply that carries `value`; a refusal where JSON cannot."""
    try:
        data = dump_json(value)
    except (TypeError, ValueError) as error:
        return refusal(
            call.call, "TypeError", f"{call.name} returned what JSON cannot carry: {error}"
        )
    if len(data) > MAX_BLOB:
        return refusal(call.call, "ValueError", f"{call.name} returned {len(data):,} bytes of JSON")
    return Reply(call.call, True, data)


class Replies:
    """Replies of finished calls, and a descriptor that is readable while there are any."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: deque[tuple[int, Reply]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, cell: int, reply: Reply) -> None:
        """Called by whatever thread ran the function for cell number `cell`."""
        with self._lock:
            if not self._closed:
                self._done.append((cell, reply))
                os.eventfd_write(self.wake_fd, 1)

    def take(self) -> list[tuple[int, Reply]]:
        """The replies since the last call, each with the cell that it is for."""
        with self._lock:
            try:
                os.eventfd_read(self.wake_fd)
            except BlockingIOError:
                return []
            replies = list(self._done)
            self._done.clear()
            return replies

    def close(self) -> None:
        """No more replies."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.wake_fd)


class Executor:
    """Runs host functions: plain ones in threads, coroutine functions on a loop of its own.

    One for each sandbox, shared by its sessions; threads and loop start when first needed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, function: HostFunction, call: Call, done: Callable[[Reply], None]) -> None:
        """Run `function` with the arguments of `call` and hand its reply to `done`."""
        args, kwargs = arguments(call)
        context = contextvars.copy_context()

        def run() -> None:
            try:
                value = context.run(function, *args, **kwargs)
                if inspect.isawaitable(value):
                    asyncio.run_coroutine_threadsafe(
                        _finish(value, call, done), self._running_loop()
                    )
                    return
                reply = success(call, value)
            # Boundary: whatever the host's function raises is the session's to know, as text.
            except Exception as error:  # noqa: BLE001
                reply = refusal(call.call, type(error).__name__, str(error))
            done(reply)

        self._pool().submit(run)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="repl-host")
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
        """Take no more calls; what runs is not waited for, its replies go nowhere."""
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Turn `loop` until it is stopped; what still waits on it is cancelled."""
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
    finally:
        loop.close()


async def _finish(value: Awaitable[Any], call: Call, done: Callable[[Reply], None]) -> None:
    try:
        reply = success(call, await value)
    # Boundary: as in Executor.start.
    except Exception as error:  # noqa: BLE001
        reply = refusal(call.call, type(error).__name__, str(error))
    done(reply)


class LoopExecutor(Executor):
    """For async sessions: coroutine functions run on the loop of the session's caller."""

    def start(self, function: HostFunction, call: Call, done: Callable[[Reply], None]) -> None:
        """Run `function`, on the running loop if it is a coroutine function."""
        if not inspect.iscoroutinefunction(function):
            super().start(function, call, done)
            return
        args, kwargs = arguments(call)
        finish = _finish(_await(function, args, kwargs), call, done)
        task = asyncio.get_running_loop().create_task(finish)
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


async def _await(function: HostFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call and await `function`: wrong arguments then fail where its other errors are caught."""
    return await function(*args, **kwargs)


# A loop keeps only weak references to its tasks.
_tasks: set[asyncio.Task[None]] = set()
