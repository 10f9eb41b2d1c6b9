"""`FrameWriter`: the frames that wait to be written to the stream."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

from . import descriptor_passing, stream_frames
from .stream_frames import frame

# Bytes that are collected for one write.
_WRITE_SIZE = 1 << 16


class FrameWriter:
    """Frames for descriptor `sink`, which does not block."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._frames: deque[bytes | Iterator[bytes]] = deque()
        self._buffer = bytearray()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame after those before it."""
        self._frames.append(frame(kind, number, payload))

    def send_number(self, kind: int, number: int, value: int) -> None:
        """Send a frame whose payload is a number."""
        self.send(kind, number, stream_frames.NUMBER.pack(value))

    def send_content(self, number: int, fd: int) -> None:
        """Send the content of file `fd`, which is closed afterwards, as the file `number`."""
        self._frames.append(_content_frames(number, fd))

    @property
    def pending(self) -> bool:
        """True if frames wait to be written."""
        return bool(self._buffer or self._frames)

    def flush(self) -> None:
        """Write as much as the stream accepts; raise OSError if its reader is gone."""
        try:
            while self.pending:
                self._fill_buffer()
                del self._buffer[: os.write(self._sink, self._buffer)]
        except BlockingIOError:
            pass

    def _fill_buffer(self) -> None:
        while self._frames and len(self._buffer) < _WRITE_SIZE:
            head = self._frames[0]
            piece = head if isinstance(head, bytes) else next(head, None)
            if piece is not None:
                self._buffer += piece
            if piece is None or piece is head:
                self._frames.popleft()


def _content_frames(number: int, fd: int) -> Iterator[bytes]:
    try:
        for offset, data in descriptor_passing.content(fd):
            yield frame(stream_frames.FILL, number, stream_frames.NUMBER.pack(offset) + data)
    finally:
        os.close(fd)
