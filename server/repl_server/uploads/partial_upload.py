"""`PartialUpload`: a context whose bytes come in, and what requests for it are described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant
from .spool import Spool
from .upload_quota import UploadQuota

Key: TypeAlias = tuple[Tenant, str]


class UploadRegistry(Protocol):
    """Where uploads are kept."""

    quota: UploadQuota

    def drop(self, upload: PartialUpload) -> None:
        """Forget `upload`, and nothing that came after it."""


class UploadUser(Protocol):
    """Something that is made of an upload, or reads it."""

    @property
    def busy(self) -> bool:
        """Whether it is used now."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `first` to `last` of `total`, as Content-Range has them."""

    first: int
    last: int
    total: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class UploadStatus:
    """What became of a request: "there" already, "made" by it, or "more" is to come."""

    kind: Literal["there", "made", "more"]
    received: int


class PartialUpload:
    """A context of `total` bytes, if that is known, and those of its bytes that have come.

    Attributes:
        whole: all of them have come, and their hash is right.
        writer: the request that adds to it, compared by identity.
        at: when the last byte came.
        users: templates made of it, and resets that read it.
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
        """Bytes that have come."""
        return self.content.size

    @property
    def busy(self) -> bool:
        """Whether it is being sent, or something that is made of it is used."""
        return self.writer is not None or any(each.busy for each in self.users)

    def evict(self) -> None:
        """Drop it, whatever its state. Templates that are made of it stay."""
        self._store.drop(self)


def unknown_upload_error(sha256: str) -> RequestError:
    """The refusal of an upload that is not there, or not whole."""
    return RequestError("UNKNOWN_CONTEXT", "There is no such upload.", sha256=sha256)


def invalid_upload_request(problem: str) -> RequestError:
    """The refusal of a request that is not what it says."""
    return RequestError("VALIDATION_ERROR", problem)


def out_of_order_error(received: int) -> RequestError:
    """The refusal of bytes that do not follow, or that another request sends."""
    return RequestError("OUT_OF_ORDER", f"Continue at byte {received}.", received=received)
