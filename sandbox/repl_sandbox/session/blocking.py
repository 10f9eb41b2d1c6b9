"""`Session`: one session, driven by the calling thread. A step is one write, wait and read."""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from time import monotonic as _monotonic
from types import TracebackType
from typing import Any, TypeVar

from ..display import set_module
from ..protocol.checkpoints import Checkpoint
from ..tables import Settable
from ..types import JSON, AnyOutcome, VariableList, check_seed, parse_size
from .checkpoints import DEFAULT_LIMIT, loading, saving
from .core import (
    Core,
    check_answer_handler,
    check_code,
    check_timeout,
    fetch,
    list_variables,
    store,
)
from .files_api import SessionFiles
from .handle import SessionHandle, SessionOwner, SessionSlot
from .host_functions import HostCallable, HostFunction, check
from .io import ReadyDescriptors, SessionIO
from .running_cell import Accept

# `BlockingWait`: waits for the descriptors of a session, one caller at a time.

# Milliseconds; a caller that wakes early checks the clock again. Python runs signal handlers
# between two of its own instructions: a signal that arrives after the last one before poll(2) does
# not interrupt the call, and a Ctrl-C of that moment is seen after it.
LONGEST_WAIT = 1_000


class BlockingWait:
    """poll(2), which reports descriptors in their order: the first is the worker's socket.

    The others are behind one descriptor, an epoll(7), because each descriptor of poll(2) costs a
    step half a microsecond. The epoll has what became ready before the worker's message, because it
    is polled after the socket.
    """

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] = ()  # the descriptors of `_poll`, with `_interest`
        self._interest = 0
        self._seconds, self._milliseconds = 0.0, 0  # the limit of the last wait
        self._poll = select.poll().poll
        self._behind: set[int] = set()  # the largest result that the epoll may return
        try:
            self._epoll: select.epoll | None = select.epoll()
        except OSError:  # the maximum number of descriptors: slower without
            self._epoll = None
        self.others = -1 if self._epoll is None else self._epoll.fileno()

    def follow(self, descriptors: tuple[int, ...], worker: int, interest: int) -> None:
        """Wait for input of each of `descriptors` from now on, but for `interest` of `worker`."""
        # An epoll descriptor is readable when a descriptor behind it is.
        direct = 1 if interest == select.POLLIN else descriptors.index(worker) + 1
        poller = select.poll()
        for fd in descriptors[:direct]:
            poller.register(fd, interest if fd == worker else select.POLLIN)
        for fd in self._put_behind(descriptors[direct:]):
            poller.register(fd, select.POLLIN)
        self._poll = poller.poll
        self._descriptors, self._interest = descriptors, interest

    def wait(self, io: SessionIO, seconds: float) -> ReadyDescriptors:
        """Wait at most so long, rounded up, because waking early would spin. Return what is
        ready.
        """
        descriptors, interest = io.descriptors, io.send_buffer.interest
        if self._descriptors is not descriptors or self._interest != interest:
            self.follow(descriptors, io.worker_fd, interest)
        if seconds != self._seconds:
            self._milliseconds = math.ceil(min(seconds * 1000, LONGEST_WAIT))
            self._seconds = seconds
        ready: ReadyDescriptors = self._poll(self._milliseconds)
        if ready and ready[-1][0] == self.others and self._epoll is not None:
            ready[-1:] = self._epoll.poll(0)
        return ready

    def _put_behind(self, fds: tuple[int, ...]) -> tuple[int, ...]:
        """Put exactly these descriptors behind the epoll; return the descriptors for poll(2).

        It can be repeated after a KeyboardInterrupt.
        """
        if self._epoll is None:
            return fds
        self._behind.update(fds)
        for fd in fds:
            with suppress(FileExistsError):
                self._epoll.register(fd, select.EPOLLIN)
        for fd in self._behind.difference(fds):
            with suppress(OSError):  # it was closed with the worker that it belonged to
                self._epoll.unregister(fd)
        self._behind.intersection_update(fds)
        return (self.others,)

    def close(self) -> None:
        """Release the poller; the session's descriptors stay open."""
        if self._epoll is not None:
            self._epoll.close()


_T = TypeVar("_T")


@set_module("repl_sandbox")
class Session(SessionHandle):
    """One persistent namespace in a sandbox of its own, from `Sandbox.session()`.

    ```python
    with Sandbox() as sandbox, sandbox.session(host={"double": lambda n: 2 * n}) as session:
        session.set("price", 3)
        outcome = session.run("double(price)", timeout=5)  # seconds
        print(outcome.ok, outcome.value, session.get("price"))  # True 6 3
    ```
    A cell that raises, times out or crashes is an outcome, not an exception; after a crash the
    session is as before the cell. A context manager; one caller at a time: others get SessionBusy.
    After `close`, calls raise SessionClosed. It is neither pickled nor used after a fork."""

    def __init__(self, core: Core, owner: SessionOwner) -> None:
        super().__init__(core, owner)
        core.waiting = self._waiting = BlockingWait()

    def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> AnyOutcome:
        """Run `code` as the session's next cell and return its outcome.

        `timeout`: seconds of execution, not counting waits for host functions; default
        `Limits.timeout`. `timeout_s` is another name of it, as the environment has it.
        `on_output("stdout" | "stderr", text)` is called as output arrives, in the thread of the
        caller; it is a plain function, and its exception ends the cell.
        ```python
        print(session.run("sum(range(4))").value)  # 6
        outcome = session.run("1 / 0")
        print(outcome.ok, outcome.error.type)  # False ZeroDivisionError
        outcome = session.run("while True: pass", timeout=0.5)
        print(type(outcome).__name__)  # TimedOut
        ```
        Raises:
            TypeError, ValueError: `code` is not a str, or is over 8 MiB; `timeout` is not a number
                of seconds, or is given under both names; `on_output` is not a plain function.
            SessionClosed, SessionBusy: the session cannot be used now.
        """
        data = check_code(code)
        if on_output is not None:
            check_answer_handler(on_output)
        core = self._core
        seconds = check_timeout(timeout, core.limits, timeout_s)
        try:
            for acquired in core.try_acquire:
                if not acquired:
                    break
                try:
                    self._enter()
                    try:
                        core.cells.begin(data, seconds, on_output)
                        outcome = core.cells.try_finish(self._waiting.wait(core.io, seconds))
                        return outcome or self._wait(core.cells.run())
                    except BaseException:
                        self._finish_cancelled()
                        raise
                finally:
                    core.busy.release()
        finally:
            if core.ended:
                core.finish_end()
        raise self._busy()

    def set(self, name: str, value: Settable) -> None:
        """Bind `name` in the namespace to a copy of `value`.

        A table of pandas, polars or pyarrow arrives as itself; docs/values.md has all conversions.
        ```python
        session.set("row", {"name": "Ann", "score": 12})
        session.run("row['score'] += 1")
        print(session.get("row"))  # {'name': 'Ann', 'score': 13}
        ```
        Raises:
            TypeError, ValueError: `name` is not an identifier or belongs to the session, as
                `__builtins__`, `_out`, `FINAL` and host functions do; JSON cannot carry `value`; or
                the session has no library that can read a table.
            SandboxError: the session's memory does not suffice.
        """
        self._drive(lambda core: store(core, name, value))

    def get(self, name: str, *, as_answer: bool = False) -> JSON:
        """Return the value of the variable `name`, as JSON.

        Raises:
            KeyError: there is no such variable.
            TypeError: JSON cannot carry its value, or reading the value raised.
            ValueError: the JSON is over 64 MiB, or exceeds the session's memory, or with
                `as_answer` the size of an answer.
        """
        return self._drive(lambda core: fetch(core, name, as_answer=as_answer))

    def variables(self) -> VariableList:
        """The user's variables, in the order in which they were first bound.

        ```python
        session.run("n, name = 6, 'Ann'")
        print([(each.name, each.type) for each in session.variables()][1])  # ('name', 'str')
        ```
        """
        return self._drive(list_variables)

    def rollback(self, n: int = 1) -> tuple[str, ...]:
        """Undo the last `n` cells: the session returns to its state before them.

        Return descriptions of what could not be restored: threads, child processes, connections.
        Effects outside of the session remain: calls of host functions, answers.
        ```python
        session.run("n = 1")
        session.run("n = 2")
        session.rollback()
        print(session.get("n"))  # 1
        ```
        Raises:
            TypeError, ValueError: `n` is not a positive integer, or more than `Sandbox(history=)`
                keeps or than cells have run.
            SandboxError: the sandbox keeps no snapshots, or the one needed could not be made.
        """
        return self._drive(lambda core: core.recovery.rollback(n))

    def branch(
        self,
        *,
        seed: int | None = None,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        on_answer: Accept | None = None,
    ) -> Session:
        """Return an independent session that starts with the state of this one.

        The branch has the variables, modules, open files and the state of random generators (unless
        `seed` gives another), and a copy of the workspace in a directory of its own, to which HOME
        and the current directory lead; an absolute path that code stored leads to the original's.
        Threads, child processes and connections stay with the original: `lost` names them. The
        branch has the limits of this session, counted apart. `host` replaces the host functions by
        others of the same names, `on_answer` the receiver of answers.

        Branches of a session trust one another: they share users, namespaces and the mount table.
        ```python
        session.run("n = 1")
        with session.branch() as branch:
            branch.run("n += 1")
            print(branch.get("n"), session.get("n"))  # 2 1
        ```
        Raises:
            SandboxError: the sandbox keeps no snapshots, or the resources for one more branch are
                missing.
            TypeError, ValueError: naming the argument.
        """
        seed = check_seed(seed)
        registry = None if host is None else check(host)
        self._core.check_registry(registry)
        self._check_open()
        slot, links = SessionSlot(self._owner, self._core), None
        try:
            links = self._drive(lambda core: core.branches.make(seed, slot.take))
            branch = Session(self._core.branch_core(links, registry, on_answer), self._owner)
        except BaseException:
            if links is not None:
                links.close()
            slot.give_back()
            raise
        branch._begin()
        return branch

    def _begin(self) -> None:
        self._owner.add(self._core)
        try:
            self._lost = self._drive(lambda core: core.branches.begin())
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> SessionFiles:
        """The files of the session's workspace: `put`, `get`, `list`.

        ```python
        session.files.put("data.csv", "a,b\\n1,2\\n")
        session.run("open('out.txt', 'w').write(open('data.csv').read().upper())")
        print(session.files.get("out.txt"))  # b'A,B\\n1,2\\n'
        ```
        """
        return SessionFiles(self)

    def checkpoint(
        self,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        limit: int | str = DEFAULT_LIMIT,
    ) -> bytes:
        """Return the namespace as bytes, for `Sandbox.restore` at another time or on another
        machine.

        Variables that cannot be pickled are left out and listed (`read_manifest(data).missing`).
        The workspace is not included. `timeout`: seconds, as for a cell, and within the session's
        limits; `limit`: the maximum size of the pickles in bytes.

        Raises:
            CheckpointError: the pickles are larger, pickling takes longer, or the session has no
                cloudpickle.
            TypeError, ValueError: naming the argument.
        """
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        max_bytes = parse_size(limit, "limit")
        return self._drive(lambda core: saving(core, max_bytes, seconds)).finish()

    def _load(self, saved: Checkpoint, timeout: float | None, timeout_s: float | None) -> None:
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        self._missing = self._drive(lambda core: loading(core, saved, seconds))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if any. From any thread.

        ```python
        endless = "while True: print('working')"
        outcome = session.run(endless, on_output=lambda stream, text: session.interrupt())
        print(outcome.error.type)  # KeyboardInterrupt
        ```
        """
        self._check_open()
        self._core.io.init.interrupt()

    def close(self) -> None:
        """End the session; when this returns, none of its processes is left."""
        if not self._closed:
            self._closed = True
            self._owner.end(self._core)

    def __enter__(self) -> Session:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _drive(self, operation: Callable[[Core], Generator[float, Any, _T]]) -> _T:
        try:
            for acquired in self._core.try_acquire:  # as in `run`
                if not acquired:
                    break
                try:
                    self._enter()
                    try:
                        return self._wait(operation(self._core))
                    except BaseException:
                        self._finish_cancelled()
                        raise
                finally:
                    self._core.busy.release()
        finally:
            self._core.finish_end()
        raise self._busy()

    def _finish_cancelled(self) -> None:
        """After a KeyboardInterrupt, or an exception of `on_output`: leave the session so that it
        can go on.
        """
        if not self._is_unusable and self._core.is_occupied:
            self._is_cancelling = True
            self._wait(self._core.abandon())
        self._is_cancelling = False

    def _handle_change(self) -> None:
        super()._handle_change()
        if self._is_cancelling:  # another KeyboardInterrupt came meanwhile
            self._finish_cancelled()

    def _wait(self, steps: Generator[float, Any, _T]) -> _T:
        try:
            wake = next(steps)
            while True:
                seconds = max(0.0, wake - _monotonic())
                wake = steps.send(self._waiting.wait(self._core.io, seconds))
        except StopIteration as end:
            result: _T = end.value
            return result
