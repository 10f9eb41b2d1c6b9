"""Questions to a session between its cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping

from ..errors import SandboxError
from ..types import State
from ..wire.messages import HostMessage, WorkerMessage
from ..wire.state import Phase
from .exchange import NOTICE_TIMEOUT, Ready_
from .revival import RESTART_TIMEOUT, Revival

_STATES: Mapping[State, str] = {
    "rolled_back": "has again what it had after its last cell",
    "restarted": "is empty now",
}

_monotonic = time.monotonic


def _nothing() -> None:
    """What there is to do while most questions are answered."""


class Questions(Revival):
    """A session that answers, with a new worker if need be."""

    def ask(
        self,
        question: HostMessage,
        memfd: int | None = None,
        *,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Generator[float, Ready_, WorkerMessage]:
        """Send a question and return the worker's answer; `memfd` is for it to ask for.

        `meanwhile` is called while the worker is at it; what it raises, when it has answered.
        """
        try:
            return (yield from self._answer_to(question, memfd, meanwhile))
        finally:
            self.withdraw()

    def _answer_to(
        self, question: HostMessage, memfd: int | None, meanwhile: Callable[[], None]
    ) -> Generator[float, Ready_, WorkerMessage]:
        self._begin_cell()
        self._asked = None
        yield from self._say(question, memfd)
        if self._dead:
            # The worker died between cells, and the question went nowhere: give it a new worker.
            yield from self._replace_between()
            self._asked = None
            yield from self._say(question, memfd)
        failed: Exception | None = None
        try:
            meanwhile()
        except Exception as error:  # noqa: BLE001
            failed = error  # is raised below: who leaves now may cost the copy that is being made
        deadline = _monotonic() + max(self.limits.timeout, RESTART_TIMEOUT)
        while self._asked is None and not self._dead:
            self._receive((yield deadline))
            if self._asked is None and _monotonic() >= deadline:
                self._kill_worker()
                break
        if self._asked is None:
            came_to = _STATES[(yield from self._replace_between())]
            raise SandboxError(f"the session did not answer; it was ended, and {came_to}")
        if failed is not None:
            raise failed
        return self._asked

    def _say(self, question: HostMessage, memfd: int | None) -> Generator[float, Ready_, None]:
        """Send a question when all that was said before it is sent."""
        self._say_first()
        deadline = _monotonic() + max(self.limits.timeout, RESTART_TIMEOUT)
        while self.outbox and not self._dead:
            self._receive((yield deadline))
            if _monotonic() >= deadline:
                self._kill_worker()
                break
        if not self._dead:
            self._lending.offer(memfd)
            self._send(question)

    @property
    def _is_asking(self) -> bool:
        return self.links.connection.phase is Phase.ASKING

    def _outwait(self) -> Generator[float, Ready_, None]:
        """Take the answer that nobody wants; a worker that gives none is ended."""
        deadline = _monotonic() + self.limits.grace
        while (self._is_asking or self._doomed) and not self._dead:
            self._receive((yield deadline))
            if _monotonic() >= deadline:
                self._kill_worker(self._kept_first)
                deadline += NOTICE_TIMEOUT
        if self._dead:
            yield from self._replace_between()

    def _replace_between(self) -> Generator[float, Ready_, State]:
        """Go on with another worker; that it is empty, the outcome of the next cell says."""
        came_to = yield from self._whole(self._replace())
        self._emptied = self._emptied or came_to == "restarted"
        return came_to
