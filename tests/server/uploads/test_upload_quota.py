"""Memory of uploads: the share of each tenant, and the uploads that are evicted for others."""

from __future__ import annotations

import pytest

from repl_server.quotas import QuotaRegistry
from repl_server.tenants import RequestError, Tenant, TenantQuota
from repl_server.uploads import UploadQuota

ANN, BOB = Tenant("key", "ann"), Tenant("key", "bob")


class Thing:
    """Something that is held, until it is forgotten."""

    asked = 0  # whether they are busy, all of them together

    def __init__(self, room: UploadQuota, tenant: Tenant, count: int) -> None:
        self.room, self._busy, self.gone = room, False, False
        self.reservation = room.reserve(tenant, self)
        room.grow(self.reservation, count)

    @property
    def busy(self) -> bool:
        Thing.asked += 1
        return self._busy

    @busy.setter
    def busy(self, busy: bool) -> None:
        self._busy = busy

    def evict(self) -> None:
        self.gone = True
        self.room.shrink(self.reservation)


def room_of(limit: int, each: int | None = None) -> UploadQuota:
    return UploadQuota(limit, QuotaRegistry(TenantQuota(uploaded_bytes=each)).meter_of)


def refused(room: UploadQuota, tenant: Tenant, count: int) -> str:
    with pytest.raises(RequestError) as caught:
        Thing(room, tenant, count)
    return caught.value.code


def test_the_least_recently_used_upload_is_evicted_first() -> None:
    room = room_of(100)
    first, second, third = (Thing(room, tenant, 30) for tenant in (ANN, BOB, ANN))
    room.touch(first.reservation)

    Thing(room, BOB, 40)

    assert [each.gone for each in (first, second, third)] == [False, True, False]
    assert room.used == 100


def test_uploads_in_use_stay_and_an_oversized_upload_evicts_nothing() -> None:
    room = room_of(100)
    used, idle = Thing(room, ANN, 60), Thing(room, BOB, 40)
    used.busy = True

    room.check(BOB, 40)
    with pytest.raises(RequestError, match="NO_ROOM"):
        room.check(BOB, 41)
    assert not idle.gone
    Thing(room, BOB, 40)
    assert idle.gone and not used.gone


def test_a_tenant_over_its_allowance_evicts_its_own_uploads_alone() -> None:
    room = room_of(1000, each=100)
    theirs, oldest, newest = Thing(room, BOB, 100), Thing(room, ANN, 50), Thing(room, ANN, 50)

    room.check(ANN, 100)
    Thing(room, ANN, 50)
    assert (theirs.gone, oldest.gone, newest.gone) == (False, True, False)
    newest.busy = True
    with pytest.raises(RequestError, match="QUOTA_EXCEEDED"):
        room.check(ANN, 51)
    assert refused(room, ANN, 51) == "QUOTA_EXCEEDED"
    assert room.used == 150  # it evicted what it could, and kept what is in use


def test_a_refusal_for_lack_of_memory_charges_the_tenant_nothing() -> None:
    room = room_of(100, each=100)
    Thing(room, ANN, 60).busy = True

    assert refused(room, BOB, 41) == "NO_ROOM"
    for _ in range(3):
        Thing(room, BOB, 40).evict()
    assert room.used == 60


def test_a_growing_upload_never_evicts_itself() -> None:
    room = room_of(100)
    thing = Thing(room, ANN, 60)

    room.shrink(thing.reservation, 20)
    room.grow(thing.reservation, 60)
    assert (room.used, thing.reservation.bytes) == (100, 100)
    with pytest.raises(RequestError, match="NO_ROOM"):
        room.grow(thing.reservation, 1)
    assert not thing.gone
    thing.evict()
    thing.evict()
    assert room.used == 0


@pytest.mark.parametrize("each", [None, 1000])
def test_a_small_allocation_does_not_scan_all_uploads(each) -> None:
    room = room_of(2000, each)
    for tenant in (BOB, ANN):
        for _ in range(1000):
            Thing(room, tenant, 1)

    before = Thing.asked
    room.check(ANN, 3)
    Thing(room, ANN, 3)
    assert Thing.asked - before <= 10
    assert room.used == 2000
