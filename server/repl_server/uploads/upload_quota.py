"""`UploadQuota`: memory that uploads and what is made of them take, and which goes first.

Counting is done on the event loop, by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant


class TenantAllowance(Protocol):
    """What an owner may have; `repl_server.quotas.usage_meters.UsageMeter` is one."""

    def hold_bytes(self, count: int) -> None:
        """Count them from now on, or raise Refusal QUOTA_EXCEEDED."""

    def release_bytes(self, count: int) -> None:
        """They are forgotten."""

    def bytes_left(self) -> int | None:
        """How many more can be counted; None: no limit."""

    def spend_cpu(self, seconds: float) -> None:
        """Book CPU time that was used."""


class MemoryHolder(Protocol):
    """Whoever a holding is for."""

    @property
    def busy(self) -> bool:
        """Whether somebody uses it now."""

    def forget(self) -> None:
        """Give up what is held, now: nobody uses it, and others need the room."""


# By identity: two holdings are never one.
@dataclass(slots=True, eq=False)
class MemoryReservation:
    """Bytes that an owner has in memory, for one thing."""

    owner: Tenant
    holder: MemoryHolder
    bytes: int = 0


class UploadQuota:
    """`limit` bytes for all owners together, of which each may have what `allowances` says.

    Where there is not enough, holdings that nobody uses are given up, the one that was used longest
    ago first: the owner's own if its allowance is used up, anybody's if the room is.
    """

    def __init__(self, limit: int, allowances: Callable[[Tenant], TenantAllowance]) -> None:
        self.limit = limit
        self.allowance = allowances
        self._taken = 0
        # Dicts for their order: who was used longest ago comes first, of all and of each owner.
        # There may be sixty thousand, so nothing but `left` looks at more than it needs.
        self._holdings: dict[MemoryReservation, None] = {}
        self._of: dict[Tenant, dict[MemoryReservation, None]] = {}

    @property
    def taken(self) -> int:
        """Bytes that are held now."""
        return self._taken

    def hold(self, owner: Tenant, holder: MemoryHolder) -> MemoryReservation:
        """A holding of nothing yet."""
        holding = MemoryReservation(owner, holder)
        self._holdings[holding] = self._of.setdefault(owner, {})[holding] = None
        return holding

    def touch(self, holding: MemoryReservation) -> None:
        """It is used now."""
        for among in (self._holdings, self._of.get(holding.owner, {})):
            if holding in among:
                del among[holding]
                among[holding] = None

    def left(self, owner: Tenant, beside: MemoryReservation | None = None) -> int:
        """Bytes that `owner` could have beside what is used now, `beside` among it."""
        idle, theirs = 0, 0
        for each in _idle(self._holdings, beside):
            idle += each.bytes
            theirs += each.bytes if each.owner == owner else 0
        allowed = self.allowance(owner).bytes_left()
        room = self.limit - self._taken + idle
        return room if allowed is None else min(room, allowed + theirs)

    def check(self, owner: Tenant, count: int) -> None:
        """Whether `count` bytes more fit if nobody else came; nothing is given up for it.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM.
        """
        allowance = self.allowance(owner)
        allowed = allowance.bytes_left()
        if not _has(self._holdings, self._taken + count - self.limit):
            raise self._no_room()
        if allowed is not None and not _has(self._of.get(owner, {}), count - allowed):
            allowance.hold_bytes(count)  # which says what the limit is
            allowance.release_bytes(count)

    def take(self, holding: MemoryReservation, count: int) -> None:
        """Count `count` bytes more for a holding, which is used now.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM; nothing was counted.
        """
        allowance = self.allowance(holding.owner)
        while True:
            try:
                allowance.hold_bytes(count)
                break
            except RequestError:
                if not _give_up(self._of.get(holding.owner, {}), holding):
                    raise
        while self._taken + count > self.limit:
            if not _give_up(self._holdings, holding):
                allowance.release_bytes(count)
                raise self._no_room()
        self._taken += count
        holding.bytes += count
        self.touch(holding)

    def give_back(self, holding: MemoryReservation, count: int | None = None) -> None:
        """Count `count` bytes less; None: the holding is over."""
        if count is None:
            count = holding.bytes
            self._remove(holding)
        if count:
            self.allowance(holding.owner).release_bytes(count)
        self._taken -= count
        holding.bytes -= count

    def _remove(self, holding: MemoryReservation) -> None:
        self._holdings.pop(holding, None)
        mine = self._of.get(holding.owner, {})
        mine.pop(holding, None)
        if not mine:
            self._of.pop(holding.owner, None)

    def _no_room(self) -> RequestError:
        return RequestError("NO_ROOM", "There is no room for this context now.", limit=self.limit)


def _idle(
    among: Iterable[MemoryReservation], beside: MemoryReservation | None = None
) -> Iterator[MemoryReservation]:
    return (each for each in among if each is not beside and not each.holder.busy)


def _has(among: Iterable[MemoryReservation], count: int) -> bool:
    """Whether those that nobody uses have `count` bytes together."""
    if count <= 0:
        return True
    for each in _idle(among):
        count -= each.bytes
        if count <= 0:
            return True
    return False


def _give_up(among: Iterable[MemoryReservation], beside: MemoryReservation) -> bool:
    """Give up what was used longest ago; False if all is used."""
    found = next(_idle(among, beside), None)
    if found is not None:
        found.holder.forget()
    return found is not None
