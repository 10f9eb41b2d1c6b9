"""What was asked of a session, who waits for the reply, and the line of what waits its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError

# Requests that one session may have waiting, and characters of them and of the one that runs: then
# nothing is read, and what its client sends is held, and bounded, before it is a request.
_MOST_WAITING = 16
_MOST_SIZE = 1 << 20


class ReplySink(Protocol):
    """Where replies go: a socket, or one HTTP response."""

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more."""

    @property
    def blocked_since(self) -> float | None:
        """Since when it waits for the client to read, by `time.monotonic`; None if it does not."""

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """Send a reply. Never raises because the client has gone."""

    def end(self, code: int, reason: str) -> None:
        """Close it; it is not waited for."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request, who waits for its reply, and the reply once it is there.

    `to` asked last, and is sent what comes before the reply; `before` asked earlier, and waits too.
    """

    request: ClientRequest | InvalidFrame
    to: ReplySink
    reply: ServerReply | None = None
    before: tuple[ReplySink, ...] = ()

    @property
    def outlets(self) -> tuple[ReplySink, ...]:
        """All who wait for the reply."""
        return (*self.before, self.to)

    def asked_again(self, to: ReplySink) -> None:
        """Have the reply go to `to` as well."""
        self.before = tuple(each for each in self.outlets if each is not to and not each.gone)
        self.to = to

    def forget(self, outlet: ReplySink) -> bool:
        """`outlet` has gone; whether somebody else waits."""
        others = tuple(each for each in self.outlets if each is not outlet)
        if others:
            *before, self.to = others
            self.before = tuple(before)
        return bool(others)


class RequestQueue:
    """Requests of one session that wait for their turn. One takes them out, in order.

    Attributes:
        full: whether no more should be asked now.
    """

    def __init__(self) -> None:
        self.full = False
        self._waiting: deque[PendingRequest] = deque()
        self._size = 0
        self._taken = 0  # the size of the one that was taken out and is not done
        self._comer: asyncio.Future[None] | None = None  # who takes them out, while there is none
        self._room = asyncio.Event()  # set when it is not full any more
        self._quiet: asyncio.Event | None = None  # of who waits for that
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(tuple(self._waiting))

    async def room(self) -> None:
        """Wait until it is not full."""
        if self.full:
            await self._room.wait()

    async def quiet(self) -> None:
        """Wait until nothing waits, and who takes them out has come for more or never will."""
        if self._ended or (self._comer is not None and not self._waiting):
            return
        self._quiet = self._quiet or asyncio.Event()
        await self._quiet.wait()

    def end(self) -> None:
        """Nobody takes any out any more."""
        self._ended = True
        self._tell_quiet()

    def add(self, asked: PendingRequest) -> None:
        """Put a request at the end."""
        self._waiting.append(asked)
        self._size += asked.request.size
        if self._comer is not None and not self._comer.done():
            self._comer.set_result(None)
        if not self._is_roomy():
            self.full = True
            self._room.clear()

    async def take(self) -> PendingRequest:
        """The first one, as soon as there is any. The one before it is done."""
        self._size -= self._taken
        self._taken = 0
        if self.full and self._is_roomy():
            self._make_room()
        while not self._waiting:
            self._tell_quiet()
            self._comer = asyncio.get_running_loop().create_future()
            try:
                await self._comer
            finally:
                self._comer = None
        asked = self._waiting.popleft()
        self._taken = asked.request.size
        return asked

    def find(self, id: str) -> PendingRequest | None:
        """The request of this id."""
        return next((each for each in self._waiting if each.request.id == id), None)

    def give_up(self, id: str) -> bool:
        """Have the request of this id not run; False if there is none."""
        asked = self.find(id)
        if asked is None or asked.reply is not None:
            return False
        asked.reply = cancelled_reply()
        return True

    def forget(self, outlet: ReplySink) -> None:
        """Drop what nobody waits for because `outlet` has gone."""
        self._waiting = deque(each for each in self._waiting if each.forget(outlet))
        self._size = self._taken + sum(each.request.size for each in self._waiting)
        self._make_room()

    def _make_room(self) -> None:
        self.full = False
        self._room.set()

    def _tell_quiet(self) -> None:
        if self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    def _is_roomy(self) -> bool:
        return len(self._waiting) < _MOST_WAITING and self._size < _MOST_SIZE


def cancelled_reply() -> ServerReply:
    """The reply to a request that was cancelled."""
    return ServerReply.refusing(
        RequestError("EXECUTION_ERROR", "cancelled: the request was given up")
    )
