"""`UploadQuota`: the memory of uploads and of templates made of them, and the order of eviction.

Only the event loop's thread counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant


class TenantAllowance(Protocol):
    """The limit of one tenant, as `repl_server.quotas.usage_meters.UsageMeter` implements it."""

    def hold_bytes(self, count: int) -> None:
        """Count `count` more bytes, or raise RequestError QUOTA_EXCEEDED."""

    def release_bytes(self, count: int) -> None:
        """Count `count` bytes less."""

    def bytes_left(self) -> int | None:
        """Bytes that the tenant may still hold; None without a limit."""

    def spend_cpu(self, seconds: float) -> None:
        """Count CPU time that was used."""


class MemoryHolder(Protocol):
    """The object that a reservation is for."""

    @property
    def busy(self) -> bool:
        """True if the object is in use, and must not be evicted."""

    def evict(self) -> None:
        """Release the memory at once."""


# Compared by identity: two reservations are never equal.
@dataclass(slots=True, eq=False)
class MemoryReservation:
    """Bytes of memory that one object of a tenant holds."""

    tenant: Tenant
    holder: MemoryHolder
    bytes: int = 0


class UploadQuota:
    """Bounds the memory of all tenants by `limit`, and of each tenant by its allowance.

    If memory is short, unused objects are evicted, least recently used first: the tenant's own
    at the tenant's limit, any tenant's at the common limit.
    """

    def __init__(self, limit: int, allowances: Callable[[Tenant], TenantAllowance]) -> None:
        self.limit = limit
        self.allowance = allowances
        self._used = 0
        # Ordered by last use, least recent first: all reservations, and those of each tenant. There
        # may be sixty thousand, so only `available` visits all of them.
        self._reservations: dict[MemoryReservation, None] = {}
        self._of: dict[Tenant, dict[MemoryReservation, None]] = {}

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    def reserve(self, tenant: Tenant, holder: MemoryHolder) -> MemoryReservation:
        """Create an empty reservation."""
        reservation = MemoryReservation(tenant, holder)
        self._reservations[reservation] = self._of.setdefault(tenant, {})[reservation] = None
        return reservation

    def touch(self, reservation: MemoryReservation) -> None:
        """Mark the reservation as most recently used."""
        for among in (self._reservations, self._of.get(reservation.tenant, {})):
            if reservation in among:
                del among[reservation]
                among[reservation] = None

    def available(self, tenant: Tenant, beside: MemoryReservation | None = None) -> int:
        """Bytes that `tenant` could still get by eviction, where `beside` itself is not evicted."""
        idle, theirs = 0, 0
        for each in _idle(self._reservations, beside):
            idle += each.bytes
            theirs += each.bytes if each.tenant == tenant else 0
        allowed = self.allowance(tenant).bytes_left()
        room = self.limit - self._used + idle
        return room if allowed is None else min(room, allowed + theirs)

    def check(self, tenant: Tenant, count: int) -> None:
        """Check that `count` more bytes would fit now. Evicts nothing.

        Raises:
            RequestError: QUOTA_EXCEEDED or NO_ROOM.
        """
        allowance = self.allowance(tenant)
        allowed = allowance.bytes_left()
        if not _idle_bytes_reach(self._reservations, self._used + count - self.limit):
            raise self._no_room_error()
        if allowed is not None and not _idle_bytes_reach(self._of.get(tenant, {}), count - allowed):
            allowance.hold_bytes(count)  # raises the error with the tenant's limit
            allowance.release_bytes(count)

    def grow(self, reservation: MemoryReservation, count: int) -> None:
        """Add `count` bytes to a reservation, and mark it as most recently used.

        Raises:
            RequestError: QUOTA_EXCEEDED or NO_ROOM; nothing was added.
        """
        allowance = self.allowance(reservation.tenant)
        while True:
            try:
                allowance.hold_bytes(count)
                break
            except RequestError:
                if not _evict_oldest(self._of.get(reservation.tenant, {}), reservation):
                    raise
        while self._used + count > self.limit:
            if not _evict_oldest(self._reservations, reservation):
                allowance.release_bytes(count)
                raise self._no_room_error()
        self._used += count
        reservation.bytes += count
        self.touch(reservation)

    def shrink(self, reservation: MemoryReservation, count: int | None = None) -> None:
        """Remove `count` bytes from a reservation; None: remove the reservation."""
        if count is None:
            count = reservation.bytes
            self._remove(reservation)
        if count:
            self.allowance(reservation.tenant).release_bytes(count)
        self._used -= count
        reservation.bytes -= count

    def _remove(self, reservation: MemoryReservation) -> None:
        self._reservations.pop(reservation, None)
        mine = self._of.get(reservation.tenant, {})
        mine.pop(reservation, None)
        if not mine:
            self._of.pop(reservation.tenant, None)

    def _no_room_error(self) -> RequestError:
        return RequestError("NO_ROOM", "no memory is free for this context", limit=self.limit)


def _idle(
    among: Iterable[MemoryReservation], beside: MemoryReservation | None = None
) -> Iterator[MemoryReservation]:
    return (each for each in among if each is not beside and not each.holder.busy)


def _idle_bytes_reach(among: Iterable[MemoryReservation], count: int) -> bool:
    """Return whether idle objects hold `count` bytes together."""
    if count <= 0:
        return True
    for each in _idle(among):
        count -= each.bytes
        if count <= 0:
            return True
    return False


def _evict_oldest(among: Iterable[MemoryReservation], beside: MemoryReservation) -> bool:
    """Evict the least recently used idle object; False if there is none."""
    found = next(_idle(among, beside), None)
    if found is not None:
        found.holder.evict()
    return found is not None
