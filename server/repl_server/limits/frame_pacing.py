"""`PacedFrames`: the WebSocket parser, a bounded number of frames at a time.

An empty frame has six bytes and takes 25 µs to parse, so one read of 256 KiB could block the event
loop for a second.
"""

from __future__ import annotations

from collections.abc import Generator

from websockets.server import ServerProtocol
from websockets.streams import StreamReader

# Frames parsed per turn of the event loop: two milliseconds, and more than clients send at once.
AT_ONCE = 64


class _PacedReader(StreamReader):
    """A stream that pauses the parser after AT_ONCE frames and keeps the rest buffered."""

    remaining = AT_ONCE

    def at_eof(self) -> Generator[None, None, bool]:
        # The parser calls this before each frame.
        while not self.remaining:
            yield
        self.remaining -= 1
        return (yield from super().at_eof())


class PacedFrames(ServerProtocol):
    """Parses AT_ONCE frames of received data, and further ones at each `receive_data`."""

    def parse(self) -> Generator[None]:
        """Start the parser; the base class advances it."""
        self._stream = self.reader = _PacedReader()
        yield from super().parse()

    @property
    def paused(self) -> bool:
        """True if received data is waiting to be parsed."""
        return not self._stream.remaining and bool(self._stream.buffer)

    def receive_data(self, data: bytes | bytearray) -> None:
        """Add data, possibly none, and parse the next frames."""
        self._stream.remaining = AT_ONCE
        super().receive_data(data)
