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
from .io import Ready_, SessionIO
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
        self._patience = max(limits.timeout, RESTART_TIMEOUT)

    def ask(
        self,
        question: HostMessage,
        memfd: int | None = None,
        *,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Generator[float, Ready_, WorkerMessage]:
        """Send a request and return the worker's answer; `memfd` is a file for the request.

        `meanwhile` is called while the worker is busy; its exception is raised after the answer.
        """
        try:
            return (yield from self._answer_to(question, memfd, meanwhile))
        finally:
            self._io.withdraw()

    def _answer_to(
        self, question: HostMessage, memfd: int | None, meanwhile: Callable[[], None]
    ) -> Generator[float, Ready_, WorkerMessage]:
        self._cell.clear()
        self._io.answer = None
        yield from self._say(question, memfd)
        if self._worker.dead:
            # The worker died between cells and the request was lost: start another worker.
            yield from self._replace_between()
            self._io.answer = None
            yield from self._say(question, memfd)
        failed: Exception | None = None
        try:
            meanwhile()
        except Exception as error:  # noqa: BLE001
            failed = error  # raised below: leaving now could cost the snapshot in progress
        deadline = _monotonic() + self._patience
        while self._io.answer is None and not self._worker.dead:
            self._io.receive((yield deadline))
            if self._io.answer is None and _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if self._io.answer is None:
            came_to = _STATES[(yield from self._replace_between())]
            raise SandboxError(f"the session did not answer; it was ended, and {came_to}")
        if failed is not None:
            raise failed
        return self._io.answer

    def _say(self, question: HostMessage, memfd: int | None) -> Generator[float, Ready_, None]:
        """Send a request after everything before it is sent."""
        self._io.say_first()
        deadline = _monotonic() + self._patience
        while self._io.outbox and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if not self._worker.dead:
            self._io.offer(memfd)
            self._io.send(question)

    @property
    def is_asking(self) -> bool:
        """Whether the worker has not answered the last question yet."""
        return self._io.links.connection.phase is ProtocolPhase.ASKING

    def outwait(self) -> Generator[float, Ready_, None]:
        """Read an answer that no caller waits for; a worker that does not answer is killed."""
        deadline = _monotonic() + self._grace
        while (self.is_asking or self._worker.doomed) and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                self._io.init.kill_worker(self._recovery.kept_first)
                deadline += NOTICE_TIMEOUT
        if self._worker.dead:
            yield from self._replace_between()

    def _replace_between(self) -> Generator[float, Ready_, State]:
        """Start another worker; the outcome of the next cell reports an empty namespace."""
        came_to = yield from self._completion.of(self._recovery.replace())
        self._worker.emptied = self._worker.emptied or came_to == "restarted"
        return came_to
