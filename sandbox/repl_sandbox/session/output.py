"""`OutputCapture`: the output of a session, bounded, streamed, and kept for its later cells."""

from __future__ import annotations

import codecs
import fcntl
import functools
import os
import select
import sys
import termios
from collections import OrderedDict, deque
from collections.abc import Callable

# One read empties a whole default pipe. A stream that fills it gets the largest pipe that an
# ordinary user may have (/proc/sys/fs/pipe-max-size): fewer context switches.
_READ = 1 << 16
_LARGE_PIPE = 1 << 20
# The capacity of the two pipes of a session.
_MAX_PIPED = 2 * _LARGE_PIPE


class OutputCapture:
    """Both streams of one session; `history` has the output of past cells."""

    def __init__(self, stdout: int, stderr: int, limit: int) -> None:
        self.stdout = Stream(stdout, limit)
        self.stderr = Stream(stderr, limit)
        self.history = History(limit)
        self.is_streaming = False  # whether there is an `on_output`
        self._raised: BaseException | None = None
        self._by_fd = {stdout: self.stdout, stderr: self.stderr}
        self._pipes = select.poll()
        for fd in self._by_fd:
            self._pipes.register(fd, select.POLLIN)

    def take_turns(self) -> None:
        """Read little at a time, because one thread drives many sessions."""
        for stream in self._by_fd.values():
            stream.take_turns()

    @property
    def overflows(self) -> bool:
        """True if the cell has written more than is kept."""
        return self.stdout.overflows or self.stderr.overflows

    def begin(self, on_output: Callable[[str, str], None] | None) -> None:
        """Pass text to `on_output` as well, as it arrives, from now on."""
        self.is_streaming, self._raised = on_output is not None, None
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            on_text = on_output and functools.partial(self._report, on_output, name)
            stream.begin(on_text)

    def _report(self, on_output: Callable[[str, str], None], name: str, text: str) -> None:
        if self._raised is not None:
            return
        try:
            on_output(name, text)
        # Boundary: the callback is the user's. Text is also read while a worker is replaced, which
        # must not be interrupted.
        except BaseException as error:  # noqa: BLE001
            self._raised = error

    def check(self) -> None:
        """Raise the exception of `on_output`, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def read(self, fd: int) -> bool:
        """Read once from `fd`; return whether it is one of the two streams."""
        stream = self._by_fd.get(fd)
        if stream is None:
            return False
        stream.read()
        return True

    def drain(self) -> None:
        """Read what the cell has written; bounded, because its background processes may go on
        writing.
        """
        total = 0
        while total < _MAX_PIPED and self._pipes.poll(0):
            read = self.stdout.read() + self.stderr.read()
            if not read:  # end of file: init, which held the other ends, is gone
                return
            total += read

    def end(self, cell: int | None) -> tuple[str, str]:
        """Return the texts of both streams since the last end, and keep them as those of `cell`."""
        stdout, stderr = self.stdout.end(), self.stderr.end()
        if cell is not None and (stdout or stderr):
            self.history.add(cell, stdout, stderr)
        return stdout, stderr

    def forget(self) -> None:
        """Drop all text: the session is over, and the garbage collector may be late."""
        self.stdout.forget()
        self.stderr.forget()
        self.history = History(0)


class Stream:
    """One output stream of one session; `begin` and `end` delimit a cell.

    `head_size`: bytes kept of its beginning, 0 only if nothing came.
    """

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self._half = max(1, limit // 2)
        self._read_size = _READ
        self._largest_read = _LARGE_PIPE
        self._on_text: Callable[[str], None] | None = None
        self._decode: codecs.IncrementalDecoder | None = None
        self.forget()

    def forget(self) -> None:
        """Drop the text."""
        self._head: list[bytes] = []
        self.head_size = 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def begin(self, on_text: Callable[[str], None] | None) -> None:
        """Start a cell; its text goes to `on_text` as it arrives. Earlier output stays."""
        self._on_text = on_text
        self._decode = _new_decoder("replace") if on_text else None

    def take_turns(self) -> None:
        """Read little at a time: the thread has other streams to read."""
        self._largest_read = _READ

    @property
    def overflows(self) -> bool:
        """True if some of the cell's output was dropped."""
        return self._dropped > 0

    def read(self) -> int:
        """Read once; return the number of bytes, 0 if there were none."""
        try:
            data = os.read(self.fd, self._available())
        except BlockingIOError:
            return 0
        if len(data) == _READ == self._read_size < self._largest_read:
            self._enlarge()
        self._keep(data)
        if self._on_text is not None and self._decode is not None:
            text = self._decode.decode(data)
            if text:
                self._on_text(text)
        return len(data)

    def _available(self) -> int:
        """The size of the next read: for a large pipe the number of bytes in it, for the buffer is
        allocated each time.
        """
        if self._read_size == _READ:
            return _READ
        size = int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        return min(max(size, 1), self._read_size)

    def _enlarge(self) -> None:
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
        except OSError:
            # The user's pipe budget is used up (pipe(7)): slower, but correct.
            pass
        self._read_size = _LARGE_PIPE

    def _keep(self, data: bytes) -> None:
        room = self._half - self.head_size
        if room > 0:
            self._head.append(data[:room])
            self.head_size += len(self._head[-1])
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._half:
            dropped = len(self._tail.popleft())
            self._tail_size -= dropped
            self._dropped += dropped

    def end(self) -> str:
        """The cell's text so far: head and tail, with a marker between them if some was dropped."""
        if not self._head:
            return ""
        self._on_text = None
        if not self._tail:
            text = b"".join(self._head).decode("utf-8", "replace")
        else:
            text = self._joined()
        self.forget()
        return text

    def _joined(self) -> str:
        tail = b"".join(self._tail)
        if not self._dropped and len(tail) <= self._half:
            return b"".join((*self._head, tail)).decode("utf-8", "replace")
        # The tail is kept in whole chunks; the text shown is exact.
        self._dropped += max(0, len(tail) - self._half)
        tail = tail[-self._half :]
        head = b"".join(self._head).decode("utf-8", "replace")
        marker = f"\n... ({self._dropped:,} bytes of output dropped: over the output limit) ...\n"
        return head + marker + tail.decode("utf-8", "replace")


_new_decoder = codecs.getincrementaldecoder("utf-8")


class History:
    """The output of past cells, the newest up to `limit` characters in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._cells: OrderedDict[tuple[int, str], str] = OrderedDict()

    def copy(self) -> History:
        """Return an independent copy."""
        other = History(self._limit)
        other._size, other._cells = self._size, self._cells.copy()
        return other

    def add(self, cell: int, stdout: str, stderr: str) -> None:
        """Keep the output of cell number `cell`, and drop the oldest."""
        for name, text in (("stdout", stdout), ("stderr", stderr)):
            if text:
                self._cells[cell, name] = text
                self._size += len(text)
        while self._size > self._limit:
            self._size -= len(self._cells.pop(next(iter(self._cells))))

    def text(self, cell: int, stream: str, start: int, stop: int) -> str:
        """A slice of the output of a cell."""
        return self._cells.get((cell, stream), "")[start:stop]

    def length(self, cell: int, stream: str) -> int:
        """Characters kept of a cell's output to a stream."""
        return len(self._cells.get((cell, stream), ""))
