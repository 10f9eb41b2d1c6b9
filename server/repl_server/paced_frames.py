"""`PacedFrames`: the protocol of WebSockets, a few frames at a time.

A frame takes six bytes to send and 25 µs to read, so what one read brings can hold the event loop
for a second. What comes and goes with every step, a text that is one frame and came alone, is read
and written here, at a third of what the parser for everything takes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import BytesLike

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

# Frames read in one turn of the loop: two milliseconds, and more than anybody asks at once.
AT_ONCE = 64

# RFC 6455, section 5.2. The first byte of a text that is one frame; the bit of a mask in the second
# byte, and there the length, or that it stands in the next two bytes, or in the next eight.
_TEXT: Final = 0x81
_MASKED: Final = 0x80
_SHORT: Final = 126
_MASK_BYTES: Final = 4


class _Reader(StreamReader):
    """A stream that rests after so many frames, with what came in its buffer.

    Attributes:
        between: whether a frame was read whole, and nothing came of the next one.
    """

    left = AT_ONCE
    between = False

    def at_eof(self) -> Generator[None, None, bool]:
        # The parser asks for this before each frame.
        while not self.left:
            yield
        self.left -= 1
        self.between = True
        ended = yield from super().at_eof()
        self.between = False
        return ended


class PacedFrames(ServerProtocol):
    """Reads `AT_ONCE` frames of what came; the others when it is given more, or nothing."""

    def parse(self) -> Generator[None]:
        """Begin to parse; whoever is above runs it."""
        self._stream = self.reader = _Reader()
        yield from super().parse()

    @property
    def resting(self) -> bool:
        """Whether there is more to be read of what came."""
        return not self._stream.left and bool(self._stream.buffer)

    def receive_data(self, data: bytes | bytearray) -> None:
        """Take more, and read on."""
        stream = self._stream
        stream.left = AT_ONCE
        if stream.between and self._is_plain() and self.current_size is None:
            payload = _payload(data, self.max_message_size)
            if payload is not None:
                self.events.append(Frame(Opcode.TEXT, payload))
                return
        super().receive_data(data)

    def text_of(self, data: bytes | bytearray) -> str | None:
        """The text that `data` is, as the one frame of a message, if nothing else is under way;
        None where it may be something else, and nothing was taken.
        """
        stream = self._stream
        if not stream.between or self.current_size is not None or not self._is_plain():
            return None
        payload = _payload(data, self.max_message_size)
        try:
            return None if payload is None else payload.decode()
        except UnicodeDecodeError:
            return None

    def frame_of(self, text: str) -> bytes | None:
        """The frame that says `text`, to be written at once; None where something is in its way."""
        if self.writes or self.expect_continuation_frame or not self._is_plain():
            return None
        return _text_out(text.encode())

    def send_text(self, data: BytesLike, fin: bool = True) -> None:
        """Send a text, or the first part of one."""
        if fin and self._is_plain() and not self.expect_continuation_frame:
            self.writes.append(_text_out(data))
        else:
            super().send_text(data, fin)

    def _is_plain(self) -> bool:
        """Whether texts are what they seem, and nobody wants to see their frames."""
        return self.state is State.OPEN and not self.extensions and not self.debug


def _payload(data: bytes | bytearray, most: int | None) -> bytes | None:
    """What is in the frame that `data` is, if it is one text of less than 64 KiB; else None."""
    size = len(data)
    if size < 2 + _MASK_BYTES or data[0] != _TEXT or not data[1] & _MASKED:
        return None
    length, begin = data[1] & ~_MASKED, 2
    if length == _SHORT:
        length, begin = int.from_bytes(data[2:4]), 4
    elif length > _SHORT:
        return None
    begin += _MASK_BYTES
    if size != begin + length or (most is not None and length > most):
        return None
    return apply_mask(data[begin:], data[begin - _MASK_BYTES : begin])


def _text_out(data: BytesLike) -> bytes:
    length = len(data)
    if length < _SHORT:
        head = bytes((_TEXT, length))
    elif length < 1 << 16:
        head = bytes((_TEXT, _SHORT)) + length.to_bytes(2)
    else:
        head = bytes((_TEXT, _SHORT + 1)) + length.to_bytes(8)
    return head + data
