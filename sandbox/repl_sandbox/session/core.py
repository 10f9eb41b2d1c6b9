"""`Core`: the logic of one session, composed of its parts, for any driver.

An operation that has to wait is a generator: it yields the time at which it wants to continue if
nothing happens, and receives the descriptors that are ready. All reads and writes are non-blocking;
a driver does nothing but wait for `io.descriptors`.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from itertools import repeat
from typing import Any, Protocol

from ..errors import RemoteProtocolError, SandboxError
from ..host.links import SessionLinks
from ..native.libc import seal
from ..protocol.messages import (
    Answered,
    Assign,
    Configure,
    Failed,
    Fetch,
    HostCall,
    ListVariables,
    Result,
    Value,
    Variables,
    WorkerMessage,
)
from ..protocol.values import check_free, check_name, encoded, parse_answer, parse_json
from ..tables import Settable, Table
from ..types import JSON, NO_ANSWER, KillReason, Limits, VariableList, check_seconds
from .calls import FunctionExecutor, HostCallHandler, OpenCalls
from .cells import CellExecution
from .host_functions import FunctionRegistry
from .io import ReadyDescriptors, SessionIO, ShieldedOperations, WorkerConfiguration
from .output import OutputCapture
from .recovery import Branches, NamespaceQueries, Recovery
from .running_cell import Accept, RunningCell

# `MessageDispatch`: passes each input of a session to the part that handles it.


class MessageDispatch:
    """The handler of a session's `io`."""

    def __init__(
        self, io: SessionIO, cell: RunningCell, calls: HostCallHandler, output: OutputCapture
    ) -> None:
        self._io, self._cell, self._calls, self._output = io, cell, calls, output

    def take(self, message: WorkerMessage) -> None:
        """Handle one message of the worker; raise RemoteProtocolError if it breaks the protocol."""
        kind = type(message)
        if kind is Result:
            assert isinstance(message, Result)
            if message.cell != self._cell.number:
                raise RemoteProtocolError("the result of another cell")
            self._cell.result = message
        elif isinstance(message, HostCall):
            self._calls.take(message)
        elif isinstance(message, Answered):
            self._calls.take_answer(message)
        else:
            self._io.answer = message

    def wake(self, fd: int) -> None:
        """Read output, or else send the replies that are ready."""
        if not self._output.read(fd):
            self._calls.reply()


_monotonic = time.monotonic


class Closable(Protocol):
    """A driver's resource that ends with the session."""

    def close(self) -> None:
        """Release the resource."""


class Core:
    """One session.

    Attributes:
        io, output: The data between the host and the session's processes.
        cells, queries, branches: The operations of the session.
        recovery, calls: Recovery after deaths; host functions.
        running: The cell that runs, or ran last.
    """

    def __init__(
        self,
        links: SessionLinks,
        limits: Limits,
        rlimits: Mapping[str, int],
        *,
        registry: FunctionRegistry,
        executor: FunctionExecutor,
        seed: int | None,
        answers: str | None,
        on_answer: Accept | None,
        preloaded: bool,
        snapshots: int,
        engine_processes: int,
    ) -> None:
        self.links, self.limits = links, limits
        self._rlimits, self._snapshots = rlimits, snapshots
        self.engine_processes = (
            engine_processes  # for the watchdog: processes besides those of the code
        )
        # For the watchdog: bytes of a memfd that the worker maps while it copies them.
        self.mapped_bytes = 0
        # A preloaded module may have the state of a random generator, which all sessions share
        # until each session draws its own.
        optional = not (registry.rows or preloaded or answers is not None or seed is not None)
        configuration = WorkerConfiguration(
            Configure(registry.rows, seed, answers), optional=optional
        )
        open_calls, completion = OpenCalls(registry, executor), ShieldedOperations()
        cell = self.running = RunningCell(limits.host_timeout)
        io = self.io = SessionIO(links, cell, configuration, open_calls.reply_fds)
        self.output = OutputCapture(links.stdout, links.stderr, int(limits.output))
        self.calls = HostCallHandler(io, cell, open_calls, self.output, on_answer)
        io.listen(MessageDispatch(io, cell, self.calls, self.output))
        self.recovery = Recovery(io, cell, completion, rlimits, snapshots)
        self.queries = NamespaceQueries(io, cell, self.recovery, completion, limits)
        self.branches = Branches(io, self.queries, self.recovery, completion)
        self.cells = CellExecution(
            io, cell, self.calls, self.output, self.recovery, completion, limits
        )
        self._completion = completion
        self.busy = threading.Lock()  # held by the caller in progress
        # Takes the lock if it is free: the first iteration of a loop over this tells. Python checks
        # for signals after a call, and from CPython 3.14 on also within `with`, after `__enter__`:
        # a KeyboardInterrupt there would leave the lock taken for good. Python does not check
        # between the iterator's `next` and the body of a loop.
        self.try_acquire = map(self.busy.acquire, repeat(False))
        self.holder = 0  # the thread of the last caller
        self.waiting: Closable | None = None  # the driver's resource for waiting, until the end
        self.handle_ref: object = (
            None  # a weak reference that warns of a handle that was never closed
        )
        self.ended = False  # whether the session has ended, by itself or with its sandbox
        self._released = False

    def ready(self) -> None:
        """Follow the CPU clock of the worker, which has started; called once, before any
        operation.
        """
        self.io.worker.set_cpu_clock(self.links.cpu_clock())

    # ── for threads that watch sessions ───────────────────────────────────────────────────────

    @property
    def cell(self) -> int:
        """The number of the cell that runs, or ran last."""
        return self.running.number

    @property
    def running_since(self) -> float:
        """The start of the running cell on the monotonic clock; 0 while no cell runs."""
        return self.running.running_since

    @property
    def worker_number(self) -> int:
        """The number of the current worker; each worker has another."""
        return self.io.init.worker_number

    @property
    def interrupting(self) -> bool:
        """True if the running cell was interrupted and has not ended yet."""
        return self.io.init.interrupting

    def breach(self, reason: KillReason, worker_number: int) -> None:
        """Kill the worker with this number because it exceeded a limit."""
        self.io.init.breach(reason, worker_number)

    def note_process_limit(self) -> None:
        """Note that the session has as many processes as allowed: forks fail."""
        self.cells.limit_hits.note_process_limit()

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def check_registry(self, registry: FunctionRegistry | None) -> None:
        """Raise ValueError unless code of a branch can use these functions as it uses the
        session's.
        """
        own = self.calls.open_calls.registry
        if registry is not None and registry.differ(own):
            names = sorted(row.name for row in own.rows)
            raise ValueError(
                f"host must have functions with the names and schemas of the session's: {names}"
            )

    def branch_core(
        self, links: SessionLinks, registry: FunctionRegistry | None, on_answer: Accept | None
    ) -> Core:
        """Return the core of the branch at `links`, which has the state of this session.

        `registry` and `on_answer` may be its own; the names of functions stay.
        """
        core = Core(
            links,
            self.limits,
            self._rlimits,
            registry=self.calls.open_calls.registry if registry is None else registry,
            executor=self.calls.open_calls.executor,
            seed=None,
            answers=self.io.configuration.message.answers,
            on_answer=self.calls.on_answer if on_answer is None else on_answer,
            preloaded=True,
            snapshots=self._snapshots,
            engine_processes=self.engine_processes,
        )
        core.running.number = self.running.number
        core.recovery.history = self.recovery.history.of_branch()
        core.io.configuration.restored()
        core.output.history = self.output.history.copy()
        return core

    # ── leaving in the middle ─────────────────────────────────────────────────────────────────

    def abandon(self) -> Generator[float, ReadyDescriptors, None]:
        """End the cell or query whose caller left, and be ready for the next call."""
        cell, worker, init = self.running, self.io.worker, self.io.init
        self.output.begin(None)
        if self._completion.unfinished is not None:
            yield from self._completion.of_abandoned()
            cell.running_since = 0.0  # a cell that waited for it does not start any more
            self.cells.end_job()
            return
        if self.queries.is_waiting:
            yield from self.queries.discard_answer()
        if cell.running_since and cell.result is None and not worker.dead:
            init.interrupt()
            deadline = _monotonic() + self.limits.grace
            while (cell.result is None or worker.kill_ordered) and not worker.dead:
                self.io.receive((yield deadline))
                if _monotonic() >= deadline:
                    deadline = self.recovery.order_kill()
        if cell.running_since:
            yield from self._completion.of(self.cells.finish(None, "kept"))

    @property
    def is_occupied(self) -> bool:
        """True if the worker is busy with something that the next call would have to wait for."""
        unfinished = self._completion.unfinished is not None
        return bool(self.running.running_since) or self.queries.is_waiting or unfinished

    def release(self) -> None:
        """Release `busy` for the next caller."""
        self.busy.release()
        self.finish_end()

    def finish_end(self) -> None:
        """Finish an end of the session that waited for the caller who held `busy`."""
        if self.ended:
            self.release_resources()

    def take_untouched_links(self) -> SessionLinks | None:
        """End the session for its host and return the links, if no code ran in it: another can have
        it.

        None if the session was used, or a call is in progress.
        """
        if not self.busy.acquire(False):
            return None
        try:
            if self._released or not self.io.untouched:
                return None
            self.ended = self.io.closing = self._released = True
            self.handle_ref = None
            self.close()
        finally:
            self.busy.release()
        return self.links

    def release_resources(self) -> None:
        """Release the host's resources of the session, which has ended, now or when its caller
        leaves.

        That caller may be the one that ends the session, in an `on_output` or a signal handler.
        """
        self.ended = True
        self.handle_ref = None
        if not self.busy.acquire(False):
            return
        try:
            if not self._released:
                self._released = True
                self.links.close()
                self.close()
        finally:
            self.busy.release()

    def close(self) -> None:
        """Release the host's resources; the sandbox ends the links."""
        self.io.listen(None)  # breaks a reference cycle
        self.calls.open_calls.close()
        self.output.forget()
        if self.waiting is not None:
            self.waiting.close()


# The operations of a session besides running a cell, with checks of their arguments.

# A cell is a message of a model; data is passed by `set`. CPython's parser takes seconds and some
# 100 bytes of memory for each byte of source.
MAX_CODE = 8 << 20
# Below this size a copy through the socket is cheaper than making and mapping a memfd.
_BULK = 1 << 16
# Encoding in pieces keeps the copy in the processor's cache.
_PIECE = 1 << 20


def check_code(code: str) -> bytes:
    """Return `code` encoded, without a BOM; raise TypeError or ValueError if it is not a valid
    cell.
    """
    if not isinstance(code, str):
        raise TypeError(f"code must be a str, not {type(code).__name__}")
    code = code.removeprefix("\ufeff")
    try:
        data = code.encode()
    except UnicodeEncodeError:
        data = code.encode("utf-8", "surrogatepass")  # slower
    if len(data) > MAX_CODE:
        raise ValueError(
            f"code is {len(data):,} bytes; the limit is {MAX_CODE:,}. Pass data with set()"
        )
    return data


def check_answer_handler(on_output: Callable[[str, str], None]) -> None:
    """Raise TypeError unless `on_output` is a plain function: the engine awaits none."""
    if not callable(on_output) or inspect.iscoroutinefunction(on_output):
        kind = "coroutine function" if callable(on_output) else type(on_output).__name__
        raise TypeError(f"on_output must be a plain function, which is not awaited, not a {kind}")


def check_timeout(timeout: float | None, limits: Limits, timeout_s: float | None = None) -> float:
    """The execution limit of a cell in seconds; the argument has two names, of which one may be
    used.
    """
    if timeout_s is None:
        return limits.timeout if timeout is None else check_seconds(timeout, "timeout")
    if timeout is not None:
        raise TypeError("timeout and timeout_s are the same argument: give one of them")
    return check_seconds(timeout_s, "timeout_s")


def store(core: Core, name: str, value: Settable) -> Generator[float, Any, None]:
    """Bind a variable. Large values travel in a sealed memfd, others in the frame."""
    # The one value that the session's own `answer` takes: it begins anew, for another question.
    if not (name == "answer" and value == NO_ANSWER):
        check_free(name, "name", core.calls.open_calls.registry.names)
    kind, source = _kind(value)
    if len(source) <= _BULK:
        data = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
        variable = Assign(name, kind, data)
        if core.io.configuration.add(variable):
            return
        answer = yield from core.queries.ask(variable)
    else:
        fd, size = memfd(source)
        core.mapped_bytes = size
        try:
            answer = yield from core.queries.ask(Assign(name, kind, b"", size), fd)
        finally:
            core.mapped_bytes = 0
            os.close(fd)
    if isinstance(answer, Failed) and answer.kind == "unreadable":
        raise ValueError(f"{name}: {answer.message}")
    if isinstance(answer, Failed):
        raise SandboxError(f"{name}: the session has no room for it: {answer.message}")
    _expect(answer, Value)
    core.recovery.history.assign()


def _kind(value: Settable) -> tuple[str, str | bytes]:
    if type(value) is str:
        return "str", value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    if (table := Table.of(value)) is not None:
        return "table", table.data
    try:
        return "json", encoded(value)
    except TypeError as error:
        raise TypeError(f"value must be str, bytes, JSON or a table: {error}") from None
    except ValueError as error:
        raise ValueError(f"value must be str, bytes, JSON or a table: {error}") from None


def memfd(source: str | bytes) -> tuple[int, int]:
    """Return the descriptor of a sealed file in memory with the content `source`, and its size in
    bytes.
    """
    fd = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = 0
        for start in range(0, len(source), _PIECE):
            piece = source[start : start + _PIECE]
            data = piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
            while data:
                written = os.write(fd, data)
                size += written
                data = data[written:]
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def fetch(core: Core, name: str, *, as_answer: bool) -> Generator[float, Any, JSON]:
    """Read a variable; with `as_answer`, raise ValueError if it exceeds the size of an answer."""
    answer = yield from core.queries.ask(Fetch(check_name(name, "name")))
    if isinstance(answer, Failed):
        raise _FETCH_ERRORS.get(answer.kind, SandboxError)(f"{name}: {answer.message}")
    try:
        return (parse_answer if as_answer else parse_json)(_expect(answer, Value).data)
    except RemoteProtocolError:
        core.breach("protocol", core.worker_number)
        raise
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_FETCH_ERRORS: dict[str, type[Exception]] = {
    "unknown": KeyError,
    "not json": TypeError,
    "too large": ValueError,
}


def list_variables(core: Core) -> Generator[float, Any, VariableList]:
    """List the variables."""
    answer = yield from core.queries.ask(ListVariables())
    return VariableList(_expect(answer, Variables).variables)


def _expect(answer: WorkerMessage, kind: type[Any]) -> Any:
    if not isinstance(answer, kind):
        raise SandboxError(
            f"the session answered with {type(answer).__name__}; open another session"
        )
    return answer
