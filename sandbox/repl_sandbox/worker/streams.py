"""The session's standard streams: pipes at descriptor level, unbuffered text above them.

What Python code, C code and child processes write reaches the host in the order it was written.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
from typing import Any

from .anatomy import type_name
from .terminal import do_without

_IONBF = 2  # stdio.h, the same in glibc and musl
_stream = vars(sys).get  # by name; None also where the user deleted it

STDIN, STDOUT, STDERR = 0, 1, 2


class _Descriptor(io.FileIO):
    """A standard descriptor; it stays open, and knows whether its stream is lost to later cells."""

    def __init__(self, fd: int, mode: str) -> None:
        super().__init__(fd, mode, closefd=False)
        self.lost = False

    def lose(self) -> None:
        """What is over it is closed or detached."""
        self.lost = True
        _lost.add(self)

    def seekable(self) -> bool:
        # A template has files there and its sessions pipes. What is told is kept by all that is put
        # over this, and each change of an encoding, and each wrapper, would ask a pipe for a place.
        return False

    def close(self) -> None:
        self.lose()
        super().close()


_lost: set[_Descriptor] = set()  # that were not put back yet


class _Stream(io.TextIOWrapper):
    """Text straight to a descriptor. Closed or detached by a cell, it is replaced for the next."""

    def __init__(self, fd: int) -> None:
        # write_through without a buffer is what `python -u` has: one write to the pipe for each.
        self.descriptor = _Descriptor(fd, "w")
        super().__init__(
            self.descriptor,
            "utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
        )

    def detach(self) -> Any:
        self.descriptor.lose()
        return super().detach()


def open_streams() -> None:
    """Put text streams over descriptors 0 to 2; done once, in the template."""
    _open_stdin()
    _install("stdout", STDOUT)
    _install("stderr", STDERR)
    _unbuffer_c()
    do_without()


def _unbuffer_c() -> None:
    """Let C code write at once, too: else its text would come after what followed it."""
    libc = ctypes.PyDLL(None)
    for name in ("stdout", "stderr"):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, _IONBF, 0)


def _install(name: str, fd: int) -> _Stream:
    stream = _Stream(fd)
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
    return stream


def _open_stdin() -> _Descriptor:
    """Put standard input in place, unless the user's is there and open."""
    before = _stream("stdin")
    descriptor = _Descriptor(STDIN, "r")
    stream = io.TextIOWrapper(descriptor, "utf-8")
    if before is None or before is _stream("__stdin__") or _is_closed(before):
        sys.stdin = stream
    setattr(sys, "__stdin__", stream)  # noqa: B010 - to mypy it is final
    return descriptor


class Streams:
    """The streams of one worker, flushed and put back after each cell."""

    def __init__(self) -> None:
        self._stdin = _open_stdin()
        self._stdout = _install("stdout", STDOUT)
        self._stderr = _install("stderr", STDERR)

    def tidy(self) -> None:
        """After a cell: flush what user code put in place, and undo the closing of a stream.

        Closed, it would silence all later cells. A stream of the user's that is open stays.
        """
        try:
            if sys.stdout is self._stdout and sys.stderr is self._stderr and not _lost:
                return
        except AttributeError:
            pass  # it was deleted
        _lost.clear()
        if self._stdin.lost:  # exit() closes it
            self._stdin = _open_stdin()
        self._stdout = _put_back("stdout", STDOUT, self._stdout)
        self._stderr = _put_back("stderr", STDERR, self._stderr)


def _put_back(name: str, fd: int, ours: _Stream) -> _Stream:
    """Our stream under `name`, a new one if it was lost; in place unless the user's is usable."""
    current = _stream(name)
    usable = current is not None and current is not ours and _flushed(current)
    if ours.descriptor.lost:
        ours = _install(name, fd)
    setattr(sys, name, current if usable else ours)
    return ours


def _flushed(stream: Any) -> bool:
    """Flush a stream of the user's; whether it is open."""
    if _is_closed(stream):
        return False
    try:
        stream.flush()
    # Boundary: the stream is the user's and may do anything.
    except BaseException as error:  # noqa: BLE001
        note = f"flushing {type_name(stream)} failed: {type_name(error)}\n"
        os.write(STDERR, note.encode("utf-8", "backslashreplace"))
    return True


def _is_closed(stream: Any) -> bool:
    """Whether a stream of the user's is closed; or does not say, and so is of no use."""
    try:
        return bool(getattr(stream, "closed", False))
    # Boundary, as above.
    except BaseException:  # noqa: BLE001
        return True
