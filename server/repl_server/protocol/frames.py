"""Frames of `/ws` as docs/endpoint.md has them: a text in, a request or its refusal out. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from .replies import ServerReply
from .request_error import RequestError
from .request_models import KINDS, AnyArguments, RequestType, Seconds
from .validation import read_object, validate, validation_error, validation_error_of

_PLAIN = frozenset({"type", "data"})
_NAMED = _PLAIN | {"id"}
_STEP = _NAMED | {"timeout_s", "stream"}
# By whether a dialect is named: its requests, each with the fields of its frame.
_REQUESTS: dict[bool, dict[str, tuple[RequestType, frozenset[str]]]] = {
    False: {name: (kind, _PLAIN) for name, kind in KINDS.items() if kind.plain},
    True: {name: (kind, _STEP if kind.data is None else _NAMED) for name, kind in KINDS.items()},
}

_seconds = TypeAdapter(Seconds | None)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks for. `data` has been checked; of a step it is the action.

    `size` is in characters of its frame.
    """

    type: str
    data: Any
    id: str | None = None
    timeout_s: float | None = None
    stream: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class InvalidFrame:
    """A frame that is no request, with the `id` that its refusal carries."""

    refusal: RequestError
    id: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class FrameCodec:
    """How a socket's frames are read. `named`: as `repl-env.v1` has them, else as OpenEnv has."""

    action: type[BaseModel]
    is_v1: bool = False

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame:
        """The request that `frame` is."""
        if not isinstance(frame, str):
            return InvalidFrame(
                RequestError("INVALID_JSON", "a text frame is wanted, not a binary one")
            )
        given: dict[str, Any] = {}
        try:
            given = read_object(frame)
            return self._request(given, len(frame))
        except RequestError as refusal:
            name = given.get("id") if self.is_v1 else None
            return InvalidFrame(refusal, name if _is_id(name) else None, len(frame))

    def write(self, id: str | None, reply: ServerReply) -> str:
        """The frame of a reply."""
        return reply.frame(id)

    def _request(self, given: dict[str, Any], size: int) -> ClientRequest:
        name, data = given.get("type"), given.get("data")
        known = _REQUESTS[self.is_v1].get(name) if isinstance(name, str) else None
        if known is None:
            raise _of_no_kind(name)
        kind, fields = known
        if not given.keys() <= fields:
            raise validation_error(
                min(given.keys() - fields)[:40], "no such field", "extra_forbidden"
            )
        if self.is_v1 and not _is_id(given.get("id")):
            raise validation_error("id", "a string of 1 to 64 characters is wanted")
        if data is None and not kind.needs_data:
            data = {}
        if not isinstance(data, dict):
            raise validation_error("data", "an object is wanted")
        if kind.data is None:
            data = validate(self.action, data)
        elif kind.data is not AnyArguments:
            data = validate(kind.data, data, ("data",))
        if not self.is_v1:
            return ClientRequest(str(name), data, size=size)
        timeout_s, stream = given.get("timeout_s"), given.get("stream", False)
        if timeout_s is not None:
            timeout_s = _timeout(timeout_s)
        if not isinstance(stream, bool):
            raise validation_error("stream", "true or false is wanted")
        return ClientRequest(str(name), data, given["id"], timeout_s, stream, size)


def _of_no_kind(name: object) -> RequestError:
    if not isinstance(name, str):
        return validation_error("type", "a string is wanted")
    return RequestError("UNKNOWN_TYPE", f"there is no request of the type {name[:40]!r} here")


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64


def _timeout(value: object) -> float | None:
    try:
        return _seconds.validate_python(value)
    except ValidationError as error:
        raise validation_error_of(error.errors(), ("timeout_s",)) from None
