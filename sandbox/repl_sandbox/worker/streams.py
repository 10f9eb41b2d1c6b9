"""The session's standard streams: pipes at descriptor level, unbuffered text above them.

What Python code, C code and child processes write reaches the host in the order it was written.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import sys

STDIN, STDOUT, STDERR = 0, 1, 2


def open_streams() -> None:
    """Put text streams over descriptors 0 to 2; done once, in the template."""
    sys.stdin = io.TextIOWrapper(io.FileIO(STDIN, "r", closefd=False), "utf-8")
    _install("stdout", STDOUT)
    _install("stderr", STDERR)
    builtins.input = _no_input


def _writer(fd: int) -> io.TextIOWrapper:
    # write_through without a buffer is what `python -u` has: one write to the pipe for each.
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(
        raw, "utf-8", errors="backslashreplace", newline="\n", write_through=True
    )


def _install(name: str, fd: int) -> io.TextIOWrapper:
    stream = _writer(fd)
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
    return stream


def _no_input(prompt: object = "", /) -> str:
    """Fail at once: there is nobody at a terminal to answer."""
    raise EOFError("input() is not available: this session has no terminal")


def _silent(name: str) -> bool:
    """Whether nothing can be written to a stream of `sys`: it is gone, None or closed."""
    try:
        stream = getattr(sys, name, None)
        return stream is None or bool(getattr(stream, "closed", False))
    # Boundary: the stream is the user's and may do anything.
    except BaseException:  # noqa: BLE001
        return True


class Streams:
    """The streams of one worker, put back and flushed between cells."""

    def __init__(self) -> None:
        self._stdout = sys.stdout
        self._stderr = sys.stderr
        self._flush_c = ctypes.PyDLL(None).fflush

    def restore(self) -> None:
        """Before a cell: undo what would silence all later cells, as closing a stream does."""
        if self._stdout.closed:
            self._stdout = _install("stdout", STDOUT)
        if self._stderr.closed:
            self._stderr = _install("stderr", STDERR)
        try:
            if sys.stdout is self._stdout and sys.stderr is self._stderr:
                return
        except AttributeError:
            pass  # the last cell deleted one
        if _silent("stdout"):
            sys.stdout = self._stdout
        if _silent("stderr"):
            sys.stderr = self._stderr

    def flush(self) -> None:
        """After a cell: what C code has buffered, and streams that user code put in place."""
        self._flush_c(None)
        try:
            streams = (sys.stdout, sys.stderr)
        except AttributeError:
            return  # the cell deleted one; its own, if it had any, are its own to flush
        for stream in streams:
            if stream is not self._stdout and stream is not self._stderr and stream is not None:
                try:
                    stream.flush()
                # Boundary: the stream is the user's and may do anything.
                except BaseException as error:  # noqa: BLE001
                    note = f"flushing {type(stream).__name__} failed: {type(error).__name__}\n"
                    os.write(STDERR, note.encode())
