"""Frames of WebSocket `/ws` (docs/endpoint.md): parse requests, reject invalid frames. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from .replies import ServerReply
from .request_error import RequestError
from .request_models import KINDS, AnyArguments, RequestType, Seconds
from .validation import read_object, validate, validation_error, validation_error_of

_OPENENV = frozenset({"type", "data"})
_V1 = _OPENENV | {"id"}
_V1_STEP = _V1 | {"timeout_s", "stream"}
# Request types and the fields of their frames, by whether the socket speaks `repl-env.v1`.
_REQUESTS: dict[bool, dict[str, tuple[RequestType, frozenset[str]]]] = {
    False: {name: (kind, _OPENENV) for name, kind in KINDS.items() if kind.plain},
    True: {name: (kind, _V1_STEP if kind.data is None else _V1) for name, kind in KINDS.items()},
}

_seconds = TypeAdapter(Seconds | None)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A validated request. `data` of a step is its action; `size` counts the frame's characters."""

    type: str
    data: Any
    id: str | None = None
    timeout_s: float | None = None
    stream: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class InvalidFrame:
    """A frame that is no valid request. `id`: of the frame, if it has one; the error carries it."""

    refusal: RequestError
    id: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class FrameCodec:
    """Reads and writes the frames of one socket: of `repl-env.v1` if `is_v1`, else OpenEnv's."""

    action: type[BaseModel]
    is_v1: bool = False

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame:
        """Parse and validate a frame."""
        if not isinstance(frame, str):
            return InvalidFrame(
                RequestError("INVALID_JSON", "frames must be text, and this one is binary")
            )
        given: dict[str, Any] = {}
        try:
            given = read_object(frame)
            return self._request(given, len(frame))
        except RequestError as refusal:
            name = given.get("id") if self.is_v1 else None
            return InvalidFrame(refusal, name if _is_id(name) else None, len(frame))

    def write(self, id: str | None, reply: ServerReply) -> str:
        """The frame that carries a reply."""
        return reply.frame(id)

    def _request(self, given: dict[str, Any], size: int) -> ClientRequest:
        name, data = given.get("type"), given.get("data")
        known = _REQUESTS[self.is_v1].get(name) if isinstance(name, str) else None
        if known is None:
            raise _unknown_type(name)
        kind, fields = known
        if not given.keys() <= fields:
            raise validation_error(
                min(given.keys() - fields)[:40], "unknown field", "extra_forbidden"
            )
        if self.is_v1 and not _is_id(given.get("id")):
            raise validation_error("id", "must be a string of 1 to 64 characters")
        if data is None and not kind.needs_data:
            data = {}
        if not isinstance(data, dict):
            raise validation_error("data", "must be an object")
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
            raise validation_error("stream", "must be true or false")
        return ClientRequest(str(name), data, given["id"], timeout_s, stream, size)


def _unknown_type(name: object) -> RequestError:
    if not isinstance(name, str):
        return validation_error("type", "must be a string")
    return RequestError("UNKNOWN_TYPE", f"unknown request type {name[:40]!r}")


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64


def _timeout(value: object) -> float | None:
    try:
        return _seconds.validate_python(value)
    except ValidationError as error:
        raise validation_error_of(error.errors(), ("timeout_s",)) from None
