"""One end of a connection: frames, messages and their allowed order combined, without I/O."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Generic, TypeVar, cast, get_args

from ..errors import LocalProtocolError, RemoteProtocolError
from .frames import (
    CELL_FRAME,
    CELL_HEADER,
    CELL_KIND,
    EMPTY_RESULT_FRAME,
    EMPTY_RESULT_HEADER,
    EMPTY_RESULT_KIND,
    Frame,
    FrameReader,
)
from .messages import (
    MAX_COUNT,
    Answered,
    Assign,
    Configure,
    Execute,
    Failed,
    Fetch,
    HostCall,
    HostMessage,
    HostReply,
    ListVariables,
    Load,
    Message,
    Ready,
    Restored,
    Result,
    Save,
    Value,
    Variables,
    WorkerMessage,
    decode,
    encode,
)

# Allowed order of messages, as one table that is the same for both sides.


class ProtocolPhase(enum.IntEnum):
    """Phase of a connection. Integers, because their hash runs no Python code."""

    BOOTING = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    ASKING = enum.auto()


# A thread of the session may call the host just as the cell ends. A call, and the reply that
# refuses it, are therefore legal in every phase after boot.
_CALLS = (HostCall, Answered, HostReply)

TRANSITIONS: dict[ProtocolPhase, dict[type, ProtocolPhase]] = {
    ProtocolPhase.BOOTING: {Ready: ProtocolPhase.IDLE},
    ProtocolPhase.IDLE: {
        Configure: ProtocolPhase.IDLE,
        Restored: ProtocolPhase.IDLE,
        Execute: ProtocolPhase.RUNNING,
        Save: ProtocolPhase.RUNNING,
        Load: ProtocolPhase.RUNNING,
        Assign: ProtocolPhase.ASKING,
        Fetch: ProtocolPhase.ASKING,
        ListVariables: ProtocolPhase.ASKING,
        **dict.fromkeys(_CALLS, ProtocolPhase.IDLE),
    },
    ProtocolPhase.RUNNING: {
        Result: ProtocolPhase.IDLE,
        **dict.fromkeys(_CALLS, ProtocolPhase.RUNNING),
    },
    ProtocolPhase.ASKING: {
        Value: ProtocolPhase.IDLE,
        Variables: ProtocolPhase.IDLE,
        Failed: ProtocolPhase.IDLE,
        **dict.fromkeys(_CALLS, ProtocolPhase.ASKING),
    },
}


_In = TypeVar("_In", bound=Message)
_Out = TypeVar("_Out", bound=Message)

_FROM_HOST = frozenset(get_args(HostMessage))
_FROM_WORKER = frozenset(get_args(WorkerMessage))


class _Connection(Generic[_In, _Out]):
    """Bytes in, messages out; messages in, bytes out. Both ends of a socket run this code.

    One thread may send while another receives. Only calls and replies may overlap with another
    message. They do not change the phase and therefore never write it: a phase they read may be out
    of date.
    """

    _sendable: frozenset[type]
    _receivable: frozenset[type]

    def __init__(self) -> None:
        self.phase = ProtocolPhase.BOOTING
        self._reader = FrameReader()
        self._broken = False

    @property
    def between_messages(self) -> bool:
        """True if the last byte received ended a message."""
        return self._reader.buffered == 0

    def send(self, message: _Out) -> bytes:
        """Return `message` as bytes; LocalProtocolError if the current phase does not allow it."""
        kind = type(message)
        if kind not in self._sendable:
            raise LocalProtocolError(f"{kind.__name__} may be sent by the other side only")
        before = self.phase
        after = TRANSITIONS[before].get(kind)
        if after is None:
            raise LocalProtocolError(f"{kind.__name__} while {before.name}")
        data = encode(message)
        if after is not before:
            self.phase = after
        return data

    def receive(self, data: bytes) -> Iterator[_In]:
        """Yield the messages that `data` completes; consume all of them before the next chunk.

        Raises:
            RemoteProtocolError: the other side broke the protocol. The buffer is dropped, and each
                further call raises as well.
        """
        if self._broken:
            raise RemoteProtocolError("the other side has broken the protocol before")
        reader = self._reader
        reader.feed(data)
        try:
            while (frame := reader.next_frame()) is not None:
                yield self._accept(frame)
        except RemoteProtocolError:
            self._broken = True
            self._reader = FrameReader()
            raise

    def _accept(self, frame: Frame) -> _In:
        message = decode(frame)
        kind = type(message)
        before = self.phase
        after = TRANSITIONS[before].get(kind)
        if after is None or kind not in self._receivable:
            problem = "from the wrong side" if after is not None else f"while {before.name}"
            raise RemoteProtocolError(f"{kind.__name__} {problem}")
        if after is not before:
            self.phase = after
        return cast(_In, message)

    @property
    def buffered(self) -> int:
        """Bytes received that do not complete a frame yet."""
        return self._reader.buffered

    @property
    def missing(self) -> int:
        """Bytes that would complete the current frame; 0 if unknown."""
        return self._reader.missing


# The two messages with fixed headers are written and read here without objects in between, byte for
# byte as in `messages`. Any chunk that is not exactly one such message takes the general path.
_CELL_SIZE, _CELL_HEADER_SIZE = CELL_FRAME.size, CELL_HEADER.size
_RESULT_SIZE, _RESULT_HEADER_SIZE = EMPTY_RESULT_FRAME.size, EMPTY_RESULT_HEADER.size
_pack_cell, _unpack_cell = CELL_FRAME.pack, CELL_FRAME.unpack_from
_pack_result, _unpack_result = EMPTY_RESULT_FRAME.pack, EMPTY_RESULT_FRAME.unpack
_IDLE, _RUNNING = ProtocolPhase.IDLE, ProtocolPhase.RUNNING


class HostConnection(_Connection[WorkerMessage, HostMessage]):
    """The host's end. Its input comes from code that counts as hostile."""

    _sendable = _FROM_HOST
    _receivable = _FROM_WORKER

    def execute(self, cell: int, code: bytes) -> bytes:
        """Return the bytes of `send(Execute(cell, code))`; the code must fit a frame."""
        if self.phase is not _IDLE:
            raise LocalProtocolError(f"Execute while {self.phase.name}")
        self.phase = _RUNNING
        head: bytes = _pack_cell(_CELL_HEADER_SIZE, len(code), CELL_KIND, cell)
        return head + code

    def empty_result(self, data: bytes, cell: int) -> int | None:
        """Return the peak memory if `data` is exactly the empty result of `cell`, else None."""
        if len(data) != _RESULT_SIZE:
            return None
        header_size, blob_size, kind, number, peak = _unpack_result(data)
        if (
            number != cell
            or kind != EMPTY_RESULT_KIND
            or header_size != _RESULT_HEADER_SIZE
            or blob_size
            or peak >= MAX_COUNT
            or self.phase is not _RUNNING
            or self._reader.pending
            or self._broken
        ):
            return None
        self.phase = _IDLE
        return int(peak)


class WorkerConnection(_Connection[HostMessage, WorkerMessage]):
    """The worker's end."""

    _sendable = _FROM_WORKER
    _receivable = _FROM_HOST

    def cell(self, data: bytes) -> tuple[int, bytes] | None:
        """Return the cell and its code if `data` is exactly one `Execute`, else None."""
        if len(data) < _CELL_SIZE:
            return None
        header_size, code_size, kind, number = _unpack_cell(data)
        if (
            kind != CELL_KIND
            or header_size != _CELL_HEADER_SIZE
            or len(data) != _CELL_SIZE + code_size
            or number >= MAX_COUNT
            or self.phase is not _IDLE
            or self._reader.pending
            or self._broken
        ):
            return None
        self.phase = _RUNNING
        return number, data[_CELL_SIZE:]

    def empty_result(self, cell: int, peak_memory: int) -> bytes:
        """Return the bytes of `send` for a `Result` that carries only these fields."""
        if self.phase is not _RUNNING:
            raise LocalProtocolError(f"Result while {self.phase.name}")
        self.phase = _IDLE
        data: bytes = _pack_result(_RESULT_HEADER_SIZE, 0, EMPTY_RESULT_KIND, cell, peak_memory)
        return data
