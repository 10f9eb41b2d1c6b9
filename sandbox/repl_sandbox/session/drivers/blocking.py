"""`Session`: one session, driven by the calling thread. A step is a write, a wait and a read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from time import monotonic as _monotonic
from types import TracebackType
from typing import Any, TypeVar

from ...protocol.checkpoint_manifest import Checkpoint
from ...types import JSON, AnyOutcome, Variable, check_seed, parse_size
from ..cells.cell_answers import Accept
from ..checkpoint_jobs import DEFAULT_LIMIT, loading, saving
from ..core import Core
from ..files.session_files import SessionFiles
from ..host_functions.function_registry import HostCallable, check
from ..host_functions.host_function import HostFunction
from ..session_operations import (
    check_answer_handler,
    check_code,
    check_timeout,
    fetch,
    list_variables,
    store,
)
from .blocking_wait import BlockingWait
from .session_handle import SessionHandle, SessionOwner, SessionSlot

_T = TypeVar("_T")


class Session(SessionHandle):
    """One persistent namespace in a jail of its own. A context manager; one caller at a time."""

    def __init__(self, core: Core, home: SessionOwner) -> None:
        super().__init__(core, home)
        core.waiting = self._waiting = BlockingWait()

    def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str, str], None] | None = None,
    ) -> AnyOutcome:
        """Run `code` as the session's next cell and return what it came to.

        `timeout`: seconds of execution, not counting waits for host calls; default
        `Limits.timeout`; `timeout_s` is another name of it, the environment's.
        `on_output("stdout" | "stderr", text)` is called as output comes, a plain function in the
        thread of the caller; what it raises ends the cell.

        Raises:
            TypeError, ValueError: `code` is not a str, or is over 8 MiB; `timeout` is no number
                of seconds, or is given under both names; `on_output` is no plain function.
            SessionClosed, SessionBusy: the session cannot be used now.
        """
        data = check_code(code)
        if on_output is not None:
            check_answer_handler(on_output)
        core = self._core
        seconds = check_timeout(timeout, core.limits, timeout_s)
        try:
            for taken in core.takes:
                if not taken:
                    break
                try:
                    self._enter()
                    try:
                        core.cells.begin(data, seconds, on_output)
                        outcome = core.cells.try_finish(self._waiting.wait(core.io, seconds))
                        return outcome or self._wait(core.cells.run())
                    except BaseException:
                        self._leave()
                        raise
                finally:
                    core.busy.release()
        finally:
            if core.ended:
                core.left()
        raise self._busy()

    def set(self, name: str, value: str | bytes | JSON) -> None:
        """Bind `name` in the namespace to a copy of `value`.

        Raises:
            TypeError, ValueError: `name` is no identifier, or JSON cannot carry `value`.
            SandboxError: the session has no room for it.
        """
        self._drive(lambda core: store(core, name, value))

    def get(self, name: str, *, as_answer: bool = False) -> JSON:
        """The value of the variable `name`, as JSON.

        Raises:
            KeyError: there is no such variable.
            TypeError: JSON cannot carry its value, or reading that raised.
            ValueError: it is over 64 MiB, or more than the session has room to write as JSON, or
                with `as_answer` more than an answer may be.
        """
        return self._drive(lambda core: fetch(core, name, as_answer=as_answer))

    def variables(self) -> list[Variable]:
        """The user's variables, in the order in which they were first bound."""
        return self._drive(list_variables)

    def rollback(self, n: int = 1) -> tuple[str, ...]:
        """Undo the last `n` cells: the session has again what it had before them.

        Returns what could not be brought back, in words: threads, child processes, connections.
        What the cells did outside of the session stands: calls to the host, answers.

        Raises:
            TypeError, ValueError: `n` is no count, or more than `Sandbox(history=)` keeps or has
                run.
            SandboxError: the sandbox keeps no copies, or that one could not be made.
        """
        return self._drive(lambda core: core.recovery.rollback(n))

    def branch(
        self,
        *,
        seed: int | None = None,
        host: Mapping[str, HostCallable | HostFunction] | None = None,
        on_answer: Accept | None = None,
    ) -> Session:
        """A copy of this live session that goes on apart from it.

        It has the variables, modules, open files and the random numbers' state (unless `seed` gives
        another), and a copy of the workspace in a directory of its own, where HOME and the current
        directory lead; a path that code wrote down in full leads to the original's. Threads, child
        processes and connections stay with the original: `lost` names them. Limits are those of
        this session, and each branch counts apart. `host` replaces the functions of the host by
        others of the same names, `on_answer` the receiver of answers.

        Branches of a session trust one another: they share users, namespaces and the view.

        Raises:
            SandboxError: the sandbox keeps no copies, or there is no room for one more.
            TypeError, ValueError: naming the argument.
        """
        seed = check_seed(seed)
        offers = None if host is None else check(host)
        self._core.check_offers(offers)
        self._check_open()
        room, links = SessionSlot(self._home, self._core), None
        try:
            links = self._drive(lambda core: core.branches.make(seed, room.take))
            branch = Session(self._core.branch_at(links, offers, on_answer), self._home)
        except BaseException:
            if links is not None:
                links.close()
            room.give_back()
            raise
        branch._begin()
        return branch

    def _begin(self) -> None:
        self._home.add(self._core)
        try:
            self._lost = self._drive(lambda core: core.branches.begin())
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> SessionFiles:
        """The files of its workspace: `put`, `get`, `list`."""
        return SessionFiles(self)

    def checkpoint(
        self,
        *,
        timeout: float | None = None,
        timeout_s: float | None = None,
        limit: int | str = DEFAULT_LIMIT,
    ) -> bytes:
        """The namespace as bytes, for `Sandbox.restore` at another time or on another machine.

        What cannot be pickled is left out and listed (`read_manifest(data).missing`). The workspace
        is not part of it. `timeout`: seconds, as of a cell, and in the session's memory and limits;
        `limit`: the most bytes of pickles.

        Raises:
            CheckpointError: there is more, it takes longer, or the session has no cloudpickle.
            TypeError, ValueError: naming the argument.
        """
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        most = parse_size(limit, "limit")
        return self._drive(lambda core: saving(core, most, seconds)).finish()

    def _load(self, saved: Checkpoint, timeout: float | None, timeout_s: float | None) -> None:
        seconds = check_timeout(timeout, self._core.limits, timeout_s)
        self._missing = self._drive(lambda core: loading(core, saved, seconds))

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the cell that runs, if one does. From any thread."""
        self._check_open()
        self._core.io.init.interrupt()

    def close(self) -> None:
        """End the session; when this returns, none of its processes is left."""
        if not self._closed:
            self._closed = True
            self._home.end(self._core)

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
            for taken in self._core.takes:  # as in `run`
                if not taken:
                    break
                try:
                    self._enter()
                    try:
                        return self._wait(operation(self._core))
                    except BaseException:
                        self._leave()
                        raise
                finally:
                    self._core.busy.release()
        finally:
            self._core.left()
        raise self._busy()

    def _leave(self) -> None:
        """Ctrl-C, or an `on_output` that raised: leave the session as one that can go on."""
        if not self._away and self._core.engaged:
            self._leaving = True
            self._wait(self._core.abandon())
        self._leaving = False

    def _enter_late(self) -> None:
        super()._enter_late()
        if self._leaving:  # another Ctrl-C came, while that was being done
            self._leave()

    def _wait(self, steps: Generator[float, Any, _T]) -> _T:
        try:
            wake = next(steps)
            while True:
                seconds = max(0.0, wake - _monotonic())
                wake = steps.send(self._waiting.wait(self._core.io, seconds))
        except StopIteration as end:
            result: _T = end.value
            return result
