"""`PacedFrames`: the protocol of WebSockets, a few frames at a time.

A frame takes six bytes to send and 25 µs to read, so one read of 256 KiB could hold the event loop
for a second.
"""

from __future__ import annotations

from collections.abc import Generator

from websockets.server import ServerProtocol
from websockets.streams import StreamReader

# Frames read in one turn of the loop: two milliseconds, and more than any client asks at once.
AT_ONCE = 64


class _PacedReader(StreamReader):
    """A stream that rests after so many frames, with the rest of what came in its buffer."""

    left = AT_ONCE

    def at_eof(self) -> Generator[None, None, bool]:
        # The parser asks for this before each frame.
        while not self.left:
            yield
        self.left -= 1
        return (yield from super().at_eof())


class PacedFrames(ServerProtocol):
    """Reads `AT_ONCE` frames of what came; the others when it is given more, or nothing."""

    def parse(self) -> Generator[None]:
        """Begin to parse; the caller above runs it."""
        self._stream = self.reader = _PacedReader()
        yield from super().parse()

    @property
    def paused(self) -> bool:
        """Whether there is more to be read of what came."""
        return not self._stream.left and bool(self._stream.buffer)

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take more, and read on."""
        self._stream.left = AT_ONCE
        super().receive_data(data)
