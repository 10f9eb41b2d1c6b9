"""`UploadStore`: complete and partial uploads of all tenants, by their SHA-256, within a quota."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol, TypeAlias
from weakref import WeakValueDictionary

from .quotas import Clock
from .settings import Settings
from .tenants import RequestError, Tenant

# `Spool`: the bytes of one upload in memory, hashed while they arrive.

# Larger uploads are stored in a memfd, which decoder processes share. Smaller ones need no
# descriptor: there may be more of them than a process may open.
IN_FILE = 1 << 20


class UploadDropped(OSError):
    """The bytes were dropped."""


class Spool:
    """Appended to on the event loop. Threads may read a complete spool, also during `close`."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._data = bytearray()
        self._fd: int | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def sha256(self) -> str:
        """The hash of the received bytes, in hexadecimal."""
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        """Append `data`. After an OSError the spool can only be closed.

        Raises:
            OSError: no memory is available.
        """
        self._hash.update(data)
        if self._fd is None and self.size + len(data) >= IN_FILE:
            self._fd = _file()
            _write(self._fd, self._data, 0)
            self._data.clear()
        if self._fd is None:
            self._data += data
        else:
            _write(self._fd, data, self.size)
        self.size += len(data)

    def read(self) -> bytes:
        """All bytes as one object.

        Raises:
            UploadDropped: the spool is closed.
            OSError: no file descriptor is available.
        """
        with self.file() as fd:
            data = bytearray(self.size)
            with memoryview(data) as view:
                at = 0
                while at < self.size:
                    at += os.preadv(fd, [view[at:]], at)
            return bytes(data)

    @contextmanager
    def file(self) -> Iterator[int]:
        """Open a memfd with all bytes for the duration of the block.

        Raises:
            UploadDropped: the spool is closed.
            OSError: no file descriptor is available.
        """
        fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """Release the bytes. Idempotent."""
        with self._lock:
            self._closed = True
            fd, self._fd = self._fd, None
            self._data = bytearray()
            if fd is not None:
                os.close(fd)

    def _open(self) -> int:
        with self._lock:
            if self._closed:
                raise UploadDropped(errno.ESTALE, "the upload was dropped")
            if self._fd is not None:
                return os.dup(self._fd)
            fd = _file()
            try:
                _write(fd, self._data, 0)
            except BaseException:
                os.close(fd)
                raise
            return fd


def _file() -> int:
    return os.memfd_create("repl-upload", os.MFD_CLOEXEC)


def _write(fd: int, data: bytes | bytearray, at: int) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


# `UploadQuota`: the memory of uploads and of templates made of them, and the order of eviction.
#
# Only the event loop's thread counts.


class TenantAllowance(Protocol):
    """The limit of one tenant, as `repl_server.quotas.UsageMeter` implements it."""

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


# `PartialUpload`: the received bytes of an upload, and the errors of requests for it.

Key: TypeAlias = tuple[Tenant, str]


class UploadRegistry(Protocol):
    """The owner of upload objects."""

    quota: UploadQuota

    def drop(self, upload: PartialUpload) -> None:
        """Forget `upload`, but not a later upload with the same hash."""


class UploadUser(Protocol):
    """A template made of an upload, or a reader of it."""

    @property
    def busy(self) -> bool:
        """True if it is in use now."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `first` to `last` of `total`, as in Content-Range."""

    first: int
    last: int
    total: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """The result of a PUT: the upload was "there" already, was "made", or needs "more" bytes."""

    kind: Literal["there", "made", "more"]
    received: int


class PartialUpload:
    """The received bytes of an upload of `total` bytes; None if the size is unknown.

    Attributes:
        complete: all bytes have been received, and their hash is correct.
        gone: the upload was dropped.
        writer: the request that adds bytes, compared by identity.
        at: time of the last received byte.
        users: templates made of the upload, and resets that read it.
    """

    def __init__(self, store: UploadRegistry, key: Key, total: int | None, now: float) -> None:
        self.key, self.total = key, total
        self.content = Spool()
        self.complete = self.gone = False
        self.writer: object | None = None
        self.at = now
        self.users: set[UploadUser] = set()
        self._store = store
        self.reservation = store.quota.reserve(key[0], self)

    @property
    def size(self) -> int:
        """Number of received bytes."""
        return self.content.size

    @property
    def busy(self) -> bool:
        """True if a request adds bytes, or a user is in use."""
        return self.writer is not None or any(user.busy for user in self.users)

    def evict(self) -> None:
        """Drop the upload in any state. Templates made of it stay."""
        self._store.drop(self)


def unknown_upload_error(sha256: str) -> RequestError:
    """The error for an upload that does not exist or is incomplete."""
    return RequestError("UNKNOWN_CONTEXT", "there is no such upload", sha256=sha256)


def invalid_upload_request(problem: str) -> RequestError:
    """The error for a malformed or contradictory upload request."""
    return RequestError("VALIDATION_ERROR", problem)


def out_of_order_error(received: int) -> RequestError:
    """The error for bytes that do not follow the received ones, or that another request sends."""
    return RequestError("OUT_OF_ORDER", f"continue at byte {received}", received=received)


# `UploadStore`.
#
# A tenant sees only its own uploads, and cannot find out whether another tenant has one. One
# request at a time adds bytes to an upload, from the first missing byte on. Received bytes stay
# when a request breaks off. The hash of a complete upload is checked before any use.

# Minimum that each upload counts: its bookkeeping, and a bound on the number of uploads.
LEAST_BYTES = 1 << 16
# Seconds that a partial upload is kept after its last byte, unless it is evicted earlier.
UNFINISHED_S = 300.0
# Seconds without a byte after which another request may take over an upload: the first client may
# have gone without notice, and be the one that comes back.
SENDING_S = 0.5
# Seconds that other requests for the upload wait in the meantime, short enough for clients' own
# time-outs; and seconds between two checks.
_WAIT_S = 10.0
_LOOK_S = 0.05
# Requests of one tenant that wait: more than runs have clients that begin with one context.
MOST_WAITING = 1024

_HASH = re.compile(r"[0-9a-f]{64}")


class UploadStore:
    """The uploads of all tenants, accounted in `quota`."""

    def __init__(
        self, settings: Settings, quota: UploadQuota, clock: Clock = time.monotonic
    ) -> None:
        self.quota = quota
        self._limit = settings.context_bytes
        self._clock = clock
        self._uploads: dict[Key, PartialUpload] = {}
        self._lines: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[Tenant] = Counter()

    def get(self, tenant: Tenant, sha256: str) -> PartialUpload:
        """The complete upload with this hash; marks it as used.

        Raises:
            RequestError: UNKNOWN_CONTEXT.
        """
        found = self.find(tenant, sha256)
        if found is None or not found.complete:
            raise unknown_upload_error(sha256)
        self.quota.touch(found.reservation)
        return found

    def find(self, tenant: Tenant, sha256: str) -> PartialUpload | None:
        """The complete or partial upload with this hash; does not mark it as used."""
        return self._uploads.get((tenant, sha256))

    async def put(
        self,
        tenant: Tenant,
        sha256: str,
        byte_range: ByteRange | None,
        length: int | None,
        body: AsyncIterator[bytes],
    ) -> UploadStatus:
        """Receive a body: `byte_range` of an upload, or all of it. `length`: of the body, if known.

        Many clients that begin with one context send it at once: while one of them sends, the
        others wait for the result. A body without a range starts the upload anew.

        Raises:
            RequestError: VALIDATION_ERROR, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM; OUT_OF_ORDER, with
                the byte to continue at; UNKNOWN_CONTEXT, the upload was deleted meanwhile;
                RATE_LIMITED, too many requests of the tenant wait.
            Exception: any error of `body`; received bytes stay.
        """
        self._check(sha256, byte_range, length)
        found = await self._settled((tenant, sha256), byte_range)
        if found is not None and found.complete:
            self.quota.touch(found.reservation)
            return UploadStatus("there", found.size)
        received = 0 if found is None else found.size
        if byte_range is not None and byte_range.first != received:
            raise out_of_order_error(received)
        if found is None or byte_range is None:
            found = self._begin(
                (tenant, sha256), length if byte_range is None else byte_range.total
            )
        elif found.total not in (None, byte_range.total):
            raise invalid_upload_request(
                f"the context has {found.total} bytes, not {byte_range.total}"
            )
        else:
            found.total = byte_range.total
        end = found.total if byte_range is None else byte_range.last + 1
        return await self._receive(found, end, body)

    def delete(self, tenant: Tenant, sha256: str) -> bool:
        """Drop the upload, even while it is being sent; False if there is none."""
        found = self.find(tenant, sha256)
        if found is not None:
            found.evict()
        return found is not None

    def drop(self, upload: PartialUpload) -> None:
        """Drop `upload`, but not a later upload with the same hash. Idempotent."""
        if self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]
        if not upload.gone:
            upload.gone = True
            upload.content.close()
            self.quota.shrink(upload.reservation)

    def sweep(self) -> None:
        """Drop abandoned partial uploads."""
        now = self._clock()
        for each in list(self._uploads.values()):
            if not each.complete and not each.busy and now - each.at > UNFINISHED_S:
                each.evict()

    def close(self) -> None:
        """Drop all uploads."""
        for each in list(self._uploads.values()):
            each.evict()

    @contextmanager
    def hold(self, tenant: Tenant, uploads: Collection[PartialUpload]) -> Iterator[None]:
        """Inside the block, count `uploads` twice and evict none of them."""
        reader = _UploadReader()
        reservation = self.quota.reserve(tenant, reader)
        for each in uploads:
            each.users.add(reader)
        try:
            self.quota.grow(reservation, sum(each.size for each in uploads))
            yield
        finally:
            for each in uploads:
                each.users.discard(reader)
            self.quota.shrink(reservation)

    def _check(self, sha256: str, byte_range: ByteRange | None, length: int | None) -> None:
        if _HASH.fullmatch(sha256) is None:
            raise invalid_upload_request("a SHA-256 must be 64 lower-case hexadecimal digits")
        if byte_range is not None and length is not None and length != byte_range.size:
            raise invalid_upload_request(
                f"Content-Length is {length}, but Content-Range has {byte_range.size} bytes"
            )
        total = length if byte_range is None else byte_range.total
        if total is not None and total > self._limit:
            self._too_large()

    async def _settled(self, key: Key, byte_range: ByteRange | None) -> PartialUpload | None:
        """Wait until no other request sends this upload; returns the upload.

        Raises:
            RequestError: OUT_OF_ORDER, another request still sends; RATE_LIMITED, too many wait.
        """
        if self._is_free(key, byte_range):
            return self._uploads.get(key)
        tenant, until = key[0], self._clock() + _WAIT_S
        if self._waiting[tenant] >= MOST_WAITING:
            message = "too many requests wait for uploads of others"
            raise RequestError("RATE_LIMITED", message, retry_after=1.0)
        self._waiting[tenant] += 1
        try:
            # Only the first in line looks: the client of a request that waits may have left.
            async with self._lines.setdefault(key, asyncio.Lock()):
                while not self._is_free(key, byte_range):
                    if self._clock() >= until:
                        raise out_of_order_error(self._uploads[key].size)
                    await asyncio.sleep(_LOOK_S)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
        return self._uploads.get(key)

    def _is_free(self, key: Key, byte_range: ByteRange | None) -> bool:
        """Return whether no other request sends this upload, or this one sends what comes next."""
        found = self._uploads.get(key)
        if found is None or found.complete or self._clock() - found.at >= SENDING_S:
            return True
        follows = byte_range is not None and byte_range.first == found.size
        return follows and found.writer is None

    def _begin(self, key: Key, total: int | None) -> PartialUpload:
        """Create an upload, in place of a partial one.

        Raises:
            RequestError: QUOTA_EXCEEDED or NO_ROOM, before any byte is read.
        """
        if (before := self._uploads.get(key)) is not None:
            before.evict()
        self.quota.check(key[0], max(total or 0, LEAST_BYTES))
        upload = PartialUpload(self, key, total, self._clock())
        try:
            self.quota.grow(upload.reservation, LEAST_BYTES)
        except RequestError:
            upload.evict()
            raise
        self._uploads[key] = upload
        return upload

    async def _receive(
        self, upload: PartialUpload, end: int | None, body: AsyncIterator[bytes]
    ) -> UploadStatus:
        """Append `body`, up to the byte `end` of the upload if that is known."""
        upload.writer = writer = object()
        try:
            while upload.size != end:
                data = await anext(body, None)
                if upload.gone:
                    raise RequestError("UNKNOWN_CONTEXT", "the upload was deleted while it arrived")
                if upload.writer is not writer:
                    raise out_of_order_error(upload.size)
                if data is None:
                    break
                self._add(upload, data, end)
            if upload.size == upload.total or (end is None and data is None):
                return self._finish(upload)
            return UploadStatus("more", upload.size)
        finally:
            if upload.writer is writer:
                upload.writer = None
            if not upload.size and not upload.complete:
                upload.evict()

    def _add(self, upload: PartialUpload, data: bytes, end: int | None) -> None:
        size = upload.size + len(data)
        if end is not None and size > end:
            raise invalid_upload_request("the body has more bytes than announced")
        if size > self._limit:
            upload.evict()
            self._too_large()
        self.quota.grow(upload.reservation, max(0, size - upload.reservation.bytes))
        upload.at = self._clock()
        try:
            upload.content.append(data)
        except OSError as error:
            upload.evict()
            message = f"no memory for this context: {error.strerror}"
            raise RequestError("NO_ROOM", message) from error

    def _finish(self, upload: PartialUpload) -> UploadStatus:
        if upload.content.sha256 != upload.key[1]:
            upload.evict()
            raise invalid_upload_request("the received bytes have another hash")
        upload.complete = True
        self.quota.touch(upload.reservation)
        return UploadStatus("made", upload.size)

    def _too_large(self) -> NoReturn:
        raise RequestError("TOO_LARGE", f"the limit is {self._limit} bytes", limit=self._limit)


class _UploadReader:
    """A reader of uploads, which are not evicted while it reads."""

    busy = True

    def evict(self) -> None:
        raise AssertionError("a busy holder is not evicted")
