"""`AdmissionControl`: bounds the open sessions and the queue of clients that wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

from ..protocol.request_error import RequestError


class AdmissionControl:
    """Up to `max_open` open sessions, and `waiting` queued clients, each for `wait_s` seconds."""

    def __init__(self, max_open: int, waiting: int, wait_s: float) -> None:
        self.max_open = max_open
        self.open = 0
        self._max_waiting = waiting
        self._wait_s = wait_s
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closed: RequestError | None = None

    @property
    def free(self) -> int:
        """Sessions that could be opened now."""
        return self.max_open - self.open

    @property
    def waiting(self) -> int:
        """Number of queued clients."""
        return len(self._queue)

    async def acquire(self) -> None:
        """Reserve capacity for a session, waiting in the queue if there is none.

        Raises:
            RequestError: CAPACITY_REACHED, the queue is full or the wait timed out; DRAINING.
        """
        if self._closed is not None or self.free > 0:
            self.acquire_now()
            return
        if len(self._queue) >= self._max_waiting:
            raise self._capacity_error()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._abandon(turn)
            raise self._capacity_error() from None
        except BaseException:
            self._abandon(turn)
            raise

    def acquire_now(self) -> None:
        """Reserve capacity for a session, or raise instead of waiting."""
        if self._closed is not None:
            raise RequestError(self._closed.code, self._closed.message)
        if self.free <= 0:
            raise self._capacity_error()
        self.open += 1

    def release(self) -> None:
        """Return the capacity of a session to the first client in the queue."""
        self.open -= 1
        self._admit_next()

    def resize(self, max_open: int, waiting: int) -> None:
        """Change both limits. Clients in the queue stay there, even above the new limit."""
        self.max_open, self._max_waiting = max_open, waiting
        self._admit_next()

    def _admit_next(self) -> None:
        while self._queue and self.free > 0:
            turn = self._queue.popleft()
            if not turn.done():
                self.open += 1
                turn.set_result(None)

    def close(self, refusal: RequestError) -> None:
        """Admit no more sessions; queued clients get `refusal`."""
        self._closed = refusal
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_exception(RequestError(refusal.code, refusal.message))

    def _abandon(self, turn: asyncio.Future[None]) -> None:
        """Leave the queue, or return capacity that was assigned in the meantime."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.release()
        elif turn in self._queue:
            self._queue.remove(turn)

    def _capacity_error(self) -> RequestError:
        return RequestError(
            "CAPACITY_REACHED",
            f"all {self.max_open} sessions are in use",
            active_sessions=self.open,
            max_sessions=self.max_open,
        )
