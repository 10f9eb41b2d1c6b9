"""`AdmissionControl`: how many sessions are open, and the line of those who wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

from ..protocol.request_error import RequestError


class AdmissionControl:
    """Room for `most` sessions, and a line of at most `waiting`, each for `wait_s` seconds."""

    def __init__(self, most: int, waiting: int, wait_s: float) -> None:
        self.most = most
        self.open = 0
        self._most_waiting = waiting
        self._wait_s = wait_s
        self._line: deque[asyncio.Future[None]] = deque()
        self._closed: RequestError | None = None

    @property
    def free(self) -> int:
        """How many could be opened now."""
        return self.most - self.open

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    async def enter(self) -> None:
        """Take room for a session, waiting in line for it.

        Raises:
            Refusal: CAPACITY_REACHED, at once if the line is full, else when the time is up;
                DRAINING, if nobody is let in any more.
        """
        if self._closed is not None or self.free > 0:
            self.enter_now()
            return
        if len(self._line) >= self._most_waiting:
            raise self._full()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await place
        except TimeoutError:
            self._step_out(place)
            raise self._full() from None
        except BaseException:
            self._step_out(place)
            raise

    def enter_now(self) -> None:
        """The same without waiting."""
        if self._closed is not None:
            raise RequestError(self._closed.code, self._closed.message)
        if self.free <= 0:
            raise self._full()
        self.open += 1

    def leave(self) -> None:
        """Give the room of a session back, to who waits first."""
        self.open -= 1
        self._let_in()

    def settle(self, most: int, waiting: int) -> None:
        """Have room for `most` sessions from now on, and a line of at most `waiting`.

        Who stands in line stays there, however many they are.
        """
        self.most, self._most_waiting = most, waiting
        self._let_in()

    def _let_in(self) -> None:
        while self._line and self.free > 0:
            place = self._line.popleft()
            if not place.done():
                self.open += 1
                place.set_result(None)

    def close(self, refusal: RequestError) -> None:
        """Let nobody in any more; who waits is told `refusal`."""
        self._closed = refusal
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_exception(RequestError(refusal.code, refusal.message))

    def _step_out(self, place: asyncio.Future[None]) -> None:
        """Leave the line; the room, if it was given meanwhile, is somebody else's."""
        if place.done() and not place.cancelled() and place.exception() is None:
            self.leave()
        elif place in self._line:
            self._line.remove(place)

    def _full(self) -> RequestError:
        return RequestError(
            "CAPACITY_REACHED",
            f"all {self.most} sessions are in use, and none came free",
            active_sessions=self.open,
            max_sessions=self.most,
        )
