"""One end of a conversation: frames, messages and the state table tied together, without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast, get_args

from ..errors import LocalProtocolError, RemoteProtocolError
from .frames import FrameReader
from .messages import HostMessage, Message, WorkerMessage, decode, encode
from .state import TRANSITIONS, Phase

_In = TypeVar("_In", bound=Message)
_Out = TypeVar("_Out", bound=Message)

_FROM_HOST = frozenset(get_args(HostMessage))
_FROM_WORKER = frozenset(get_args(WorkerMessage))


class _Connection(Generic[_In, _Out]):
    """Bytes in, messages out; messages in, bytes out. Both ends of a socket run this code."""

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
        phase = TRANSITIONS[self.phase].get(kind)
        if phase is None:
            raise LocalProtocolError(f"{kind.__name__} while {self.phase.name}")
        data = encode(message)
        self.phase = phase
        return data

    def receive(self, data: bytes) -> Iterator[_In]:
        """The messages that `data` completes; take them all before the next chunk.

        Raises:
            RemoteProtocolError: the other side broke the rules. What was buffered is dropped, and
                nothing more is ever taken in: each further call raises as well.
        """
        if self._broken:
            raise RemoteProtocolError("the other side has broken the protocol before")
        reader = self._reader
        reader.feed(data)
        try:
            while (frame := reader.next_frame()) is not None:
                message = decode(frame)
                kind = type(message)
                if kind not in self._theirs:
                    raise RemoteProtocolError(f"{kind.__name__} from the wrong side")
                phase = TRANSITIONS[self.phase].get(kind)
                if phase is None:
                    raise RemoteProtocolError(f"{kind.__name__} while {self.phase.name}")
                self.phase = phase
                yield cast(_In, message)
        except RemoteProtocolError:
            self._broken = True
            self._reader = FrameReader()
            raise

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
