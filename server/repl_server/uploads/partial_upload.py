"""`PartialUpload`: the received bytes of an upload, and the errors of requests for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant
from .spool import Spool
from .upload_quota import UploadQuota

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
        return self.writer is not None or any(each.busy for each in self.users)

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
