"""`SessionBatch`: cells of many sessions at once, driven by one thread.

Each session works in its own processes; the host's part is so short that more threads would only
wait for one another. Clocks, limits, host functions (which run in threads of their own) and output
are as if `Session.run` were called on each session.
"""

from __future__ import annotations

import select
from collections.abc import Generator, Sequence
from contextlib import suppress
from time import monotonic
from typing import TypeAlias

from ..errors import SandboxError
from ..types import AnyOutcome
from .blocking import LONGEST_WAIT, Session
from .core import check_code, check_timeout

# The exceptions of `Session.run`, returned in place of an outcome.
CellResult: TypeAlias = "AnyOutcome | Exception"

_Steps: TypeAlias = Generator[float, list[tuple[int, int]], AnyOutcome]


class _Cell:
    """A running cell, and its place in the batch."""

    __slots__ = ("core", "index", "session", "steps", "wake")

    def __init__(self, index: int, session: Session) -> None:
        self.index = index
        self.session = session
        self.core = session._core
        self.steps: _Steps | None = None
        self.wake = 0.0


class SessionBatch:
    """Runs cells of many sessions side by side. For one thread at a time.

    Each call may have other sessions; those of the last call need not be registered again.
    """

    def __init__(self) -> None:
        self._poller = select.poll()
        self._owners: dict[int, Session] = {}  # by descriptor
        self._registered: dict[Session, tuple[tuple[int, ...], int]] = {}

    def run(self, cells: Sequence[tuple[Session, str, float | None]]) -> list[CellResult]:
        """Run one cell in each session: (session, code, timeout in seconds of execution or None).

        Return for each, in order, its outcome or the exception that `Session.run` would raise.
        """
        results: list[CellResult | None] = [None] * len(cells)
        running: dict[Session, _Cell] = {}
        self._forget([other for other in self._registered if other._closed])
        try:
            for index, (session, code, timeout) in enumerate(cells):
                try:
                    running[session] = self._begin(index, session, code, timeout)
                except Exception as error:  # noqa: BLE001 - one cell's; the others are run
                    results[index] = error
            while running:
                for cell, ready in self._wait(running):
                    result = self._continue(cell, ready)
                    if result is not None:
                        results[cell.index] = result
                        del running[cell.session]
                        cell.core.release()
        except BaseException:
            # After a KeyboardInterrupt: leave all sessions so that they can go on.
            self._leave(running)
            raise
        return [result for result in results if result is not None]

    def _begin(self, index: int, session: Session, code: str, timeout: float | None) -> _Cell:
        data = check_code(code)
        cell = _Cell(index, session)
        seconds = check_timeout(timeout, cell.core.limits)
        session._acquire()
        try:
            cell.wake = cell.core.cells.begin(data, seconds, None)
            self._register(session)
        except BaseException:
            cell.core.release()
            raise
        return cell

    def _wait(self, running: dict[Session, _Cell]) -> list[tuple[_Cell, list[tuple[int, int]]]]:
        """Return the cells with input, or whose time to continue has come."""
        wake = min(cell.wake for cell in running.values())
        # As in `Session`: whole milliseconds, rounded up.
        wait = int((wake - monotonic()) * 1000) + 1
        ready: dict[Session, list[tuple[int, int]]] = {}
        for event in self._poller.poll(min(max(wait, 0), LONGEST_WAIT)):
            ready.setdefault(self._owners[event[0]], []).append(event)
        # Output of a session that runs no cell belongs to the next cell that it runs.
        self._forget([session for session in ready if session not in running])
        due = [
            (running[session], events) for session, events in ready.items() if session in running
        ]
        now = monotonic()
        if wake <= now:
            due += [
                (cell, [])
                for cell in running.values()
                if cell.wake <= now and cell.session not in ready
            ]
        return due

    def _continue(self, cell: _Cell, ready: list[tuple[int, int]]) -> CellResult | None:
        core = cell.core
        try:
            if cell.steps is not None:
                cell.wake = cell.steps.send(ready)
            elif (made := core.cells.try_finish(ready)) is not None:
                return made
            else:
                cell.steps = core.cells.run()
                cell.wake = next(cell.steps)
        except StopIteration as end:
            outcome: AnyOutcome = end.value
            return outcome
        except Exception as error:  # noqa: BLE001 - as in `run`
            with suppress(SandboxError):  # the session is lost; the first error says so too
                cell.session._finish_cancelled()
            return error
        self._register(cell.session)
        return None

    def _register(self, session: Session) -> None:
        """Register the session's current descriptors with the poller."""
        core = session._core
        registration = core.io.descriptors, core.io.send_buffer.interest
        if self._registered.get(session) == registration:
            return
        self._forget([session])
        descriptors, interest = registration
        for fd in descriptors:
            # The order matters for poll(2): see `SessionIO.receive`.
            self._poller.register(fd, interest if fd == core.io.worker_fd else select.POLLIN)
            self._owners[fd] = session
        self._registered[session] = registration

    def _forget(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            descriptors, _ = self._registered.pop(session, ((), 0))
            for fd in descriptors:
                if self._owners.get(fd) is session:
                    del self._owners[fd]
                    self._poller.unregister(fd)

    def _leave(self, running: dict[Session, _Cell]) -> None:
        for cell in running.values():
            cell.core.io.init.interrupt()
        for cell in running.values():
            try:
                with suppress(SandboxError):
                    cell.session._finish_cancelled()
            finally:
                cell.core.release()
