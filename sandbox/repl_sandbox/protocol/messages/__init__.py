"""The messages that the host and a worker exchange. docs/protocol.md describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ...errors import RemoteProtocolError
from ..frames import Frame
from ..header_limits import FORMS, kind_of
from ..values.json_text import parse_header
from . import host_messages, worker_messages
from .host_messages import (
    MAX_VARIABLES,
    Assign,
    Configure,
    Execute,
    Fetch,
    HostMessage,
    HostReply,
    ListVariables,
    Load,
    Save,
)
from .message_values import MAX_COUNT, MAX_FIGURE_BYTES, Header
from .worker_messages import (
    MAX_SHOWN,
    MEMFD,
    STREAMS,
    Answered,
    Failed,
    HostCall,
    Ready,
    Restored,
    Result,
    Value,
    Variables,
    WorkerMessage,
)

__all__ = [
    "MAX_COUNT",
    "MAX_FIGURE_BYTES",
    "MAX_SHOWN",
    "MAX_VARIABLES",
    "MEMFD",
    "STREAMS",
    "VERSION",
    "Answered",
    "Assign",
    "Configure",
    "Execute",
    "Failed",
    "Fetch",
    "HostCall",
    "HostMessage",
    "HostReply",
    "ListVariables",
    "Load",
    "Message",
    "Ready",
    "Restored",
    "Result",
    "Save",
    "Value",
    "Variables",
    "WorkerMessage",
    "decode",
    "encode",
]

VERSION = 7

Message: TypeAlias = HostMessage | WorkerMessage

_ENCODERS = host_messages.ENCODERS | worker_messages.ENCODERS
_DECODERS: dict[str, Callable[[Header, bytes], Message]] = {
    **host_messages.DECODERS,
    **worker_messages.DECODERS,
}
_FIXED_DECODERS: dict[bytes, Callable[[bytes, bytes], Message]] = {
    **host_messages.FIXED_DECODERS,
    **worker_messages.FIXED_DECODERS,
}


def encode(message: Message) -> bytes:
    """Return `message` as one frame."""
    return _ENCODERS[type(message)](message)


def decode(frame: Frame) -> Message:
    """Return the message that `frame` carries.

    Raises:
        RemoteProtocolError: the frame is not a message of this protocol.
    """
    data, blob = frame
    decode_fixed = _FIXED_DECODERS.get(data[:1])
    if decode_fixed is not None:
        return decode_fixed(data, blob)
    kind = kind_of(data, blob)
    header = parse_header(data)
    if type(header) is not dict or header["type"] != kind:
        raise RemoteProtocolError("header is not an object with one type")
    try:
        message = _DECODERS[kind](header, blob)
        # Each decoder reads all of its fields, so a further field is unknown.
        if len(header) != FORMS[kind].fields:
            raise ValueError("a field that the message does not have")
        return message
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"malformed {kind} message: {error}") from None
