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
    """What a tenant may have; `repl_server.quotas.usage_meters.UsageMeter` is one."""

    def hold_bytes(self, count: int) -> None:
        """Count them from now on, or raise Refusal QUOTA_EXCEEDED."""

    def release_bytes(self, count: int) -> None:
        """They are forgotten."""

    def bytes_left(self) -> int | None:
        """How many more can be counted; None: no limit."""

    def spend_cpu(self, seconds: float) -> None:
        """Book CPU time that was used."""


class MemoryHolder(Protocol):
    """Whoever a reservation is for."""

    @property
    def busy(self) -> bool:
        """Whether somebody uses it now."""

    def evict(self) -> None:
        """Give up what is held, now: nobody uses it, and others need the room."""


# By identity: two holdings are never one.
@dataclass(slots=True, eq=False)
class MemoryReservation:
    """Bytes that a tenant has in memory, for one thing."""

    tenant: Tenant
    holder: MemoryHolder
    bytes: int = 0


class UploadQuota:
    """`limit` bytes for all tenants together, of which each may have what `allowances` says.

    Where there is not enough, holdings that nobody uses are given up, the one that was used longest
    ago first: the tenant's own if its allowance is used up, anybody's if the room is.
    """

    def __init__(self, limit: int, allowances: Callable[[Tenant], TenantAllowance]) -> None:
        self.limit = limit
        self.allowance = allowances
        self._taken = 0
        # Dicts for their order: who was used longest ago comes first, of all and of each tenant.
        # There may be sixty thousand, so nothing but `left` looks at more than it needs.
        self._reservations: dict[MemoryReservation, None] = {}
        self._of: dict[Tenant, dict[MemoryReservation, None]] = {}

    @property
    def taken(self) -> int:
        """Bytes that are held now."""
        return self._taken

    def reserve(self, tenant: Tenant, holder: MemoryHolder) -> MemoryReservation:
        """A reservation of nothing yet."""
        reservation = MemoryReservation(tenant, holder)
        self._reservations[reservation] = self._of.setdefault(tenant, {})[reservation] = None
        return reservation

    def touch(self, reservation: MemoryReservation) -> None:
        """It is used now."""
        for among in (self._reservations, self._of.get(reservation.tenant, {})):
            if reservation in among:
                del among[reservation]
                among[reservation] = None

    def available(self, tenant: Tenant, beside: MemoryReservation | None = None) -> int:
        """Bytes that `tenant` could have beside what is used now, `beside` among it."""
        idle, theirs = 0, 0
        for each in _idle(self._reservations, beside):
            idle += each.bytes
            theirs += each.bytes if each.tenant == tenant else 0
        allowed = self.allowance(tenant).bytes_left()
        room = self.limit - self._taken + idle
        return room if allowed is None else min(room, allowed + theirs)

    def check(self, tenant: Tenant, count: int) -> None:
        """Whether `count` bytes more fit if nobody else came; nothing is given up for it.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM.
        """
        allowance = self.allowance(tenant)
        allowed = allowance.bytes_left()
        if not _idle_bytes_reach(self._reservations, self._taken + count - self.limit):
            raise self._no_room_error()
        if allowed is not None and not _idle_bytes_reach(self._of.get(tenant, {}), count - allowed):
            allowance.hold_bytes(count)  # which says what the limit is
            allowance.release_bytes(count)

    def grow(self, reservation: MemoryReservation, count: int) -> None:
        """Count `count` bytes more for a reservation, which is used now.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM; nothing was counted.
        """
        allowance = self.allowance(reservation.tenant)
        while True:
            try:
                allowance.hold_bytes(count)
                break
            except RequestError:
                if not _evict_oldest(self._of.get(reservation.tenant, {}), reservation):
                    raise
        while self._taken + count > self.limit:
            if not _evict_oldest(self._reservations, reservation):
                allowance.release_bytes(count)
                raise self._no_room_error()
        self._taken += count
        reservation.bytes += count
        self.touch(reservation)

    def shrink(self, reservation: MemoryReservation, count: int | None = None) -> None:
        """Count `count` bytes less; None: the reservation is over."""
        if count is None:
            count = reservation.bytes
            self._remove(reservation)
        if count:
            self.allowance(reservation.tenant).release_bytes(count)
        self._taken -= count
        reservation.bytes -= count

    def _remove(self, reservation: MemoryReservation) -> None:
        self._reservations.pop(reservation, None)
        mine = self._of.get(reservation.tenant, {})
        mine.pop(reservation, None)
        if not mine:
            self._of.pop(reservation.tenant, None)

    def _no_room_error(self) -> RequestError:
        return RequestError("NO_ROOM", "There is no room for this context now.", limit=self.limit)


def _idle(
    among: Iterable[MemoryReservation], beside: MemoryReservation | None = None
) -> Iterator[MemoryReservation]:
    return (each for each in among if each is not beside and not each.holder.busy)


def _idle_bytes_reach(among: Iterable[MemoryReservation], count: int) -> bool:
    """Whether those that nobody uses have `count` bytes together."""
    if count <= 0:
        return True
    for each in _idle(among):
        count -= each.bytes
        if count <= 0:
            return True
    return False


def _evict_oldest(among: Iterable[MemoryReservation], beside: MemoryReservation) -> bool:
    """Give up what was used longest ago; False if all is used."""
    found = next(_idle(among, beside), None)
    if found is not None:
        found.holder.evict()
    return found is not None
