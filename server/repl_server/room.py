"""`Room`: the memory that uploaded contexts and what is made of them take, and who goes first.

Counting is done on the event loop, by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .owners import Owner
from .refusal import Refusal


class Allowance(Protocol):
    """What an owner may have; `repl_server.quotas.Meter` is one."""

    def hold_bytes(self, count: int) -> None:
        """Count them from now on, or raise Refusal QUOTA_EXCEEDED."""

    def release_bytes(self, count: int) -> None:
        """They are forgotten."""

    def bytes_left(self) -> int | None:
        """How many more can be counted; None: no limit."""

    def spend_cpu(self, seconds: float) -> None:
        """Book CPU time that was used."""


class Holder(Protocol):
    """Whoever a holding is for."""

    @property
    def busy(self) -> bool:
        """Whether somebody uses it now."""

    def forget(self) -> None:
        """Give up what is held, now: nobody uses it, and others need the room."""


# By identity: two holdings are never one.
@dataclass(slots=True, eq=False)
class Holding:
    """Bytes that an owner has in memory, for one thing."""

    owner: Owner
    holder: Holder
    bytes: int = 0


class Room:
    """`limit` bytes for all owners together, of which each may have what `allowances` says.

    Where there is not enough, holdings that nobody uses are given up, the one that was used longest
    ago first: the owner's own if its allowance is used up, anybody's if the room is.
    """

    def __init__(self, limit: int, allowances: Callable[[Owner], Allowance]) -> None:
        self.limit = limit
        self.allowance = allowances
        self._taken = 0
        # A dict for its order: who was used longest ago comes first.
        self._holdings: dict[Holding, None] = {}

    @property
    def taken(self) -> int:
        """Bytes that are held now."""
        return self._taken

    def hold(self, owner: Owner, holder: Holder) -> Holding:
        """A holding of nothing yet."""
        holding = Holding(owner, holder)
        self._holdings[holding] = None
        return holding

    def touch(self, holding: Holding) -> None:
        """It is used now."""
        if holding in self._holdings:
            del self._holdings[holding]
            self._holdings[holding] = None

    def left(self, owner: Owner, beside: Holding | None = None) -> int:
        """Bytes that `owner` could have beside what is used now, `beside` among it."""
        idle, theirs = 0, 0
        for each in self._idle(beside):
            idle += each.bytes
            theirs += each.bytes if each.owner == owner else 0
        allowed = self.allowance(owner).bytes_left()
        room = self.limit - self._taken + idle
        return room if allowed is None else min(room, allowed + theirs)

    def check(self, owner: Owner, count: int) -> None:
        """Whether `count` bytes more fit if nobody else came; nothing is given up for it.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM.
        """
        allowance = self.allowance(owner)
        allowed = allowance.bytes_left()
        fits = self._taken + count <= self.limit and (allowed is None or count <= allowed)
        # To look at all that is held takes its time, and is seldom needed.
        if fits or count <= self.left(owner):
            return
        if self._taken - sum(each.bytes for each in self._idle(None)) + count > self.limit:
            raise self._no_room()
        allowance.hold_bytes(count)  # which says what the limit is
        allowance.release_bytes(count)

    def take(self, holding: Holding, count: int) -> None:
        """Count `count` bytes more for a holding, which is used now.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM; nothing was counted.
        """
        allowance = self.allowance(holding.owner)
        while True:
            try:
                allowance.hold_bytes(count)
                break
            except Refusal:
                if not self._give_up(holding, holding.owner):
                    raise
        while self._taken + count > self.limit:
            if not self._give_up(holding, None):
                allowance.release_bytes(count)
                raise self._no_room()
        self._taken += count
        holding.bytes += count
        self.touch(holding)

    def give_back(self, holding: Holding, count: int | None = None) -> None:
        """Count `count` bytes less; None: the holding is over."""
        if count is None:
            count = holding.bytes
            self._holdings.pop(holding, None)
        if count:
            self.allowance(holding.owner).release_bytes(count)
        self._taken -= count
        holding.bytes -= count

    def _idle(self, beside: Holding | None) -> Iterator[Holding]:
        return (each for each in self._holdings if each is not beside and not each.holder.busy)

    def _give_up(self, beside: Holding, owner: Owner | None) -> bool:
        """Give up what was used longest ago, of `owner` or of anybody."""
        for each in self._idle(beside):
            if owner in (None, each.owner):
                each.holder.forget()
                return True
        return False

    def _no_room(self) -> Refusal:
        return Refusal("NO_ROOM", "There is no room for this context now.", limit=self.limit)
