"""`NamespaceQueries`: requests to a session between its cells, and the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping

from ..errors import SandboxError
from ..protocol.message_order import ProtocolPhase
from ..protocol.messages import HostMessage, WorkerMessage
from ..session_limits import Limits
from ..types import State
from .cells.running_cell import RunningCell
from .io import ReadyDescriptors, SessionIO
from .recovery import NOTICE_TIMEOUT, RESTART_TIMEOUT, Recovery
from .shielded_operations import ShieldedOperations

_STATES: Mapping[State, str] = {
    "rolled_back": "has again what it had after its last cell",
    "restarted": "is empty now",
}

_monotonic = time.monotonic


def _nothing() -> None:
    """The default `meanwhile`: nothing."""


class NamespaceQueries:
    """The requests to one session; a dead worker is replaced first."""

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        recovery: Recovery,
        completion: ShieldedOperations,
        limits: Limits,
    ) -> None:
        self._io, self._cell, self._worker = io, cell, io.worker
        self._recovery, self._completion = recovery, completion
        self._grace = limits.grace
        self._timeout = max(limits.timeout, RESTART_TIMEOUT)

    def ask(
        self,
        query: HostMessage,
        memfd: int | None = None,
        *,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Generator[float, ReadyDescriptors, WorkerMessage]:
        """Send a request and return the worker's answer; `memfd` is a file for the request.

        `meanwhile` is called while the worker is busy; its exception is raised after the answer.
        """
        try:
            return (yield from self._ask(query, memfd, meanwhile))
        finally:
            self._io.withdraw()

    def _ask(
        self, query: HostMessage, memfd: int | None, meanwhile: Callable[[], None]
    ) -> Generator[float, ReadyDescriptors, WorkerMessage]:
        self._cell.clear()
        self._io.answer = None
        yield from self._send(query, memfd)
        if self._worker.dead:
            # The worker died between cells and the request was lost: start another worker.
            yield from self._replace_worker()
            self._io.answer = None
            yield from self._send(query, memfd)
        failed: Exception | None = None
        try:
            meanwhile()
        except Exception as error:  # noqa: BLE001
            failed = error  # raised below: leaving now could cost the snapshot in progress
        deadline = _monotonic() + self._timeout
        while self._io.answer is None and not self._worker.dead:
            self._io.receive((yield deadline))
            if self._io.answer is None and _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if self._io.answer is None:
            state = _STATES[(yield from self._replace_worker())]
            raise SandboxError(
                f"the session did not answer; its worker was killed, and the session {state}"
            )
        if failed is not None:
            raise failed
        return self._io.answer

    def _send(
        self, query: HostMessage, memfd: int | None
    ) -> Generator[float, ReadyDescriptors, None]:
        """Send a request, once all earlier data is sent."""
        self._io.send_configuration()
        deadline = _monotonic() + self._timeout
        while self._io.send_buffer and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if not self._worker.dead:
            self._io.offer(memfd)
            self._io.send(query)

    @property
    def is_waiting(self) -> bool:
        """True if the worker has not answered the last question yet."""
        return self._io.links.connection.phase is ProtocolPhase.ASKING

    def discard_answer(self) -> Generator[float, ReadyDescriptors, None]:
        """Read an answer that no caller waits for; a worker that does not answer is killed."""
        deadline = _monotonic() + self._grace
        while (self.is_waiting or self._worker.kill_ordered) and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                self._io.init.kill_worker(self._recovery.awaited_cell)
                deadline += NOTICE_TIMEOUT
        if self._worker.dead:
            yield from self._replace_worker()

    def _replace_worker(self) -> Generator[float, ReadyDescriptors, State]:
        """Start another worker; the outcome of the next cell reports an empty namespace."""
        state = yield from self._completion.of(self._recovery.replace())
        self._worker.emptied = self._worker.emptied or state == "restarted"
        return state
