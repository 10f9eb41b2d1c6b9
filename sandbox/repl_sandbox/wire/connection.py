"""One end of a conversation: frames, messages and the state table tied together, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, cast, get_args

from ..errors import LocalProtocolError, RemoteProtocolError
from .frames import Frame, FrameReader
from .messages import HostMessage, Message, WorkerMessage, decode, encode
from .state import TRANSITIONS, Phase

_In = TypeVar("_In", bound=Message)
_Out = TypeVar("_Out", bound=Message)

_FROM_HOST = frozenset(get_args(HostMessage))
_FROM_WORKER = frozenset(get_args(WorkerMessage))


class _Connection(Generic[_In, _Out]):
    """Bytes in, messages out; messages in, bytes out. Both ends of a socket run this code.

    One thread may send while another receives. Only calls and replies are ever under way beside
    another message; they change no phase, and so do not write it: what they saw may be past.
    """

    _mine: frozenset[type]
    _theirs: frozenset[type]

    def __init__(self) -> None:
        self.phase = Phase.BOOTING
        self._reader = FrameReader()
        self._broken = False

    @property
    def between_messages(self) -> bool:
        """Whether the last byte received ended a message."""
        return self._reader.buffered == 0

    def send(self, message: _Out) -> bytes:
        """The bytes that say `message`; LocalProtocolError if it may not be said now."""
        kind = type(message)
        if kind not in self._mine:
            raise LocalProtocolError(f"{kind.__name__} is the other side's to say")
        before = self.phase
        after = TRANSITIONS[before].get(kind)
        if after is None:
            raise LocalProtocolError(f"{kind.__name__} while {before.name}")
        data = encode(message)
        if after is not before:
            self.phase = after
        return data

    def receive(self, data: bytes) -> Iterable[_In]:
        """The messages that `data` completes; take them all before the next chunk.

        Raises:
            RemoteProtocolError: the other side broke the rules. What was buffered is dropped, and
                nothing more is ever taken in: each further call raises as well.
        """
        frame = self._reader.sole_frame(data)
        if frame is None or self._broken:
            return self._receive_many(data)
        try:
            return (self._accept(frame),)
        except RemoteProtocolError:
            self._break()
            raise

    def _receive_many(self, data: bytes) -> Iterator[_In]:
        if self._broken:
            raise RemoteProtocolError("the other side has broken the protocol before")
        reader = self._reader
        reader.feed(data)
        try:
            while (frame := reader.next_frame()) is not None:
                yield self._accept(frame)
        except RemoteProtocolError:
            self._break()
            raise

    def _accept(self, frame: Frame) -> _In:
        message = decode(frame)
        kind = type(message)
        before = self.phase
        after = TRANSITIONS[before].get(kind)
        if after is None or kind not in self._theirs:
            problem = "from the wrong side" if after is not None else f"while {before.name}"
            raise RemoteProtocolError(f"{kind.__name__} {problem}")
        if after is not before:
            self.phase = after
        return cast(_In, message)

    def _break(self) -> None:
        self._broken = True
        self._reader = FrameReader()

    @property
    def buffered(self) -> int:
        """Bytes received that end no frame yet."""
        return self._reader.buffered


class HostConnection(_Connection[WorkerMessage, HostMessage]):
    """The host's end. What it receives comes from code that is taken to be hostile."""

    _mine = _FROM_HOST
    _theirs = _FROM_WORKER


class WorkerConnection(_Connection[HostMessage, WorkerMessage]):
    """The worker's end."""

    _mine = _FROM_WORKER
    _theirs = _FROM_HOST
