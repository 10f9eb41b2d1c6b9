"""`UploadStore`: expiry and eviction of partial uploads, and senders that wait or fail."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest

from repl_server import uploads as uploads_module
from repl_server.quotas import QuotaRegistry
from repl_server.settings import Settings
from repl_server.tenants import RequestError, Tenant
from repl_server.uploads import LEAST_BYTES, UNFINISHED_S, ByteRange, UploadQuota, UploadStore
from tests.manual_clock import Clock
from tests.server.uploads.upload_data import MIB, content, memory_files, name
from tests.waiting import until


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def received(uploads: UploadStore, tenant: Tenant, data: bytes) -> int:
    found = uploads.find(tenant, name(data))
    return 0 if found is None else found.size


def kept(clock: Clock, **limits: Any) -> UploadStore:
    settings = Settings(**limits)
    return UploadStore(
        settings, UploadQuota(settings.uploads_bytes, QuotaRegistry(settings.quota).meter_of), clock
    )


async def test_abandoned_partial_uploads_are_dropped() -> None:
    clock, tenant = Clock(), Tenant("key", "ann")
    uploads = kept(clock)
    data = content(2 * MIB)
    await uploads.put(tenant, name(data), ByteRange(0, MIB - 1, 2 * MIB), MIB, body(data[:MIB]))

    clock.now += UNFINISHED_S
    uploads.sweep()
    assert received(uploads, tenant, data) == MIB
    clock.now += 0.1
    uploads.sweep()
    assert received(uploads, tenant, data) == 0
    assert uploads.quota.used == 0


async def test_a_client_is_asked_to_retry_while_another_sends_for_long() -> None:
    clock, tenant, data = Clock(), Tenant("key", "ann"), content(2 * MIB)
    uploads, go = kept(clock), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield data[:MIB]
        await go.wait()
        yield data[MIB:]

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("its body is not asked for")
        yield b""

    first = asyncio.create_task(uploads.put(tenant, name(data), None, len(data), slow()))
    await until(lambda: received(uploads, tenant, data) == MIB)
    second = asyncio.create_task(uploads.put(tenant, name(data), None, len(data), never()))
    while not second.done():
        clock.now += 1
        uploads.find(tenant, name(data)).at = clock.now  # as if bytes came all the while
        await asyncio.wait([second], timeout=0.001)
    with pytest.raises(RequestError) as caught:
        await second
    assert (caught.value.code, caught.value.details) == ("OUT_OF_ORDER", {"received": MIB})
    go.set()
    assert (await first).kind == "made"
    uploads.close()


async def test_few_requests_of_a_tenant_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of a request that waits may have left, and made the next."""
    monkeypatch.setattr(uploads_module, "MOST_WAITING", 2)
    data, tenant, other = content(2 * MIB), Tenant("key", "ann"), Tenant("key", "bob")
    uploads, go = kept(Clock()), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await go.wait()
        yield data

    async def put(who: Tenant, sent: AsyncIterator[bytes]) -> str:
        return (await uploads.put(who, name(data), None, len(data), sent)).kind

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(put(tenant, slow()))
        await asyncio.sleep(0)
        waiting = [tasks.create_task(put(tenant, body(data))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="RATE_LIMITED") as caught:
            await put(tenant, body(data))
        assert caught.value.retry_after
        assert await put(other, body(data)) == "made"
        go.set()
    assert (first.result(), *(each.result() for each in waiting)) == ("made", "there", "there")
    assert await put(tenant, body(data)) == "there"
    uploads.close()


async def test_inactive_partial_uploads_are_evicted_when_memory_is_needed() -> None:
    tenant, other = Tenant("key", "ann"), Tenant("key", "bob")
    uploads = kept(Clock(), uploads_bytes=3 * MIB)
    half, data = content(4 * MIB), content(3 * MIB)
    await uploads.put(tenant, name(half), ByteRange(0, MIB - 1, 2 * MIB), MIB, body(half[:MIB]))

    assert (await uploads.put(other, name(data), None, None, body(data))).kind == "made"
    assert received(uploads, tenant, half) == 0
    piece = ByteRange(MIB, 2 * MIB - 1, 2 * MIB)
    with pytest.raises(RequestError, match="OUT_OF_ORDER"):
        await uploads.put(tenant, name(half), piece, MIB, body(half[MIB : 2 * MIB]))
    uploads.close()


async def test_each_upload_has_a_minimum_cost() -> None:
    uploads = kept(Clock(), uploads_bytes=3 * LEAST_BYTES)
    tenant = Tenant("key", "ann")
    for each in range(5):
        data = content(10, each)
        await uploads.put(tenant, name(data), None, None, body(data))
    found = [uploads.find(tenant, name(content(10, each))) is not None for each in range(5)]
    assert found == [False, False, True, True, True]
    uploads.close()


async def test_an_aborted_sender_leaves_a_consistent_state() -> None:
    """As when the server stops."""
    uploads, tenant, data = kept(Clock()), Tenant("key", "ann"), content(8 * MIB)
    came = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        for at in range(0, 6 * MIB, MIB):
            yield data[at : at + MIB]
        came.set()
        await asyncio.Event().wait()

    piece = ByteRange(0, len(data) - 1, len(data))
    sending = asyncio.create_task(uploads.put(tenant, name(data), piece, None, slow()))
    await came.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert received(uploads, tenant, data) == 6 * MIB
    rest = ByteRange(6 * MIB, len(data) - 1, len(data))
    put = await uploads.put(tenant, name(data), rest, None, body(data[6 * MIB :]))
    assert put.kind == "made"
    uploads.close()


async def test_an_upload_without_memory_leaves_nothing() -> None:
    held = memory_files()  # by stores of other tests
    uploads, tenant, data = kept(Clock()), Tenant("key", "ann"), content(4 * MIB)
    first = ByteRange(0, MIB - 1, len(data))
    await uploads.put(tenant, name(data), first, None, body(data[:MIB]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB + MIB // 2, before[1]))
    try:
        rest = ByteRange(MIB, len(data) - 1, len(data))
        with pytest.raises(RequestError, match="NO_ROOM"):
            await uploads.put(tenant, name(data), rest, None, body(data[MIB:]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert uploads.quota.used == 0 and memory_files() <= held
