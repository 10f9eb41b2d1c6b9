"""Standard streams of a session: pipes at descriptor level, unbuffered text above them.

Output of Python code, C code and child processes reaches the host in the order of writing.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ...protocol.stream_mark import ASK, MARKS, is_marked, mark
from ..namespace.safe_inspect import type_name
from .terminal_input import do_without

_IONBF = 2  # stdio.h, the same in glibc and musl
_stream = vars(sys).get  # by name; None also where the user deleted it
_fcntl = fcntl.fcntl

STDIN, STDOUT, STDERR = 0, 1, 2
_NAMES = ("stdin", "stdout", "stderr")  # by descriptor
_MARK_OF_STDIN, _MARK_OF_STDOUT, _MARK_OF_STDERR = MARKS


class _Descriptor(io.FileIO):
    """A standard descriptor; stays open, and records whether its stream is lost to later cells."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w" if fd else "r", closefd=False)
        self.lost = False

    def lose(self) -> None:
        """Record that the stream of the descriptor is closed or detached."""
        self.lost = True
        _lost.add(self)

    def seekable(self) -> bool:
        # A template has files there and its sessions pipes. Every object built on this one caches
        # the answer, and each change of an encoding, and each wrapper, would ask a pipe for its
        # position.
        return False

    def close(self) -> None:
        self.lose()
        super().close()


_lost: set[_Descriptor] = set()  # not restored yet


class _Stream(io.TextIOWrapper):
    """Text written directly to a descriptor, or read from it.

    A stream that a cell closed or detached is opened again for the next cell: the same object, to
    which loggers and others refer.
    """

    def __init__(self, fd: int) -> None:
        self.descriptor = _Descriptor(fd)
        if fd == STDIN:
            super().__init__(self.descriptor, "utf-8")
            return
        # write_through without a buffer, like `python -u`: one write to the pipe for each call.
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
    """Put text streams over descriptors 0 to 2; called once, in the template."""
    for fd in range(len(_NAMES)):
        _install(fd)
    mark(STDIN, STDIN)  # the standard input that all sessions have from here on
    _unbuffer_c()
    do_without()


def _unbuffer_c() -> None:
    """Make C code write at once, too: otherwise its text would come after later output."""
    libc = ctypes.PyDLL(None)
    for name in ("stdout", "stderr"):
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, _IONBF, 0)


def _install(fd: int) -> _Stream:
    stream = _Stream(fd)
    setattr(sys, _NAMES[fd], stream)
    setattr(sys, f"__{_NAMES[fd]}__", stream)
    return stream


class StandardStreams:
    """The streams of one worker, restored after each cell.

    Attributes:
        are_watched: whether to restore the descriptors, too, as for a session.
    """

    def __init__(self, ask: Callable[[], tuple[int, int]]) -> None:
        """`ask` returns new descriptors of the two pipes to the host; OSError if there are none."""
        self.are_watched = False
        self._ask = ask
        self._streams = tuple(map(_install, range(len(_NAMES))))
        _, self._stdout, self._stderr = self._streams

    def restore(self, *, check_closed: bool = True) -> None:
        """Restore streams after a cell that closed, deleted or replaced them.

        The note about this is output of the cell. Without `check_closed`, the descriptors count as
        open; checking takes three system calls.
        """
        try:
            if (
                sys.stdout is self._stdout
                and sys.stderr is self._stderr
                and not _lost
                and (
                    not (check_closed and self.are_watched)
                    or (
                        _fcntl(STDOUT, ASK) == _MARK_OF_STDOUT
                        and _fcntl(STDERR, ASK) == _MARK_OF_STDERR
                        and _fcntl(STDIN, ASK) == _MARK_OF_STDIN
                    )
                )
            ):
                return
        except (AttributeError, OSError):
            pass  # it was deleted, or closed
        notes = [*self._put_descriptors_back(), *self._put_streams_back()]
        if notes:
            _write_note("".join(notes))

    def _put_descriptors_back(self) -> Iterator[str]:
        lost = [fd for fd in range(len(_NAMES)) if self.are_watched and not is_marked(fd)]
        if not lost:
            return
        try:
            if STDIN in lost:
                _place(os.open(os.devnull, os.O_RDONLY), STDIN)
                mark(STDIN, STDIN)
            if lost[-1] != STDIN:
                for target, fd in enumerate(self._ask(), STDOUT):
                    if target in lost:
                        _place(fd, target)
                    else:
                        os.close(fd)
        except OSError as error:
            yield f"a standard stream that was closed cannot be opened again: {error.strerror}\n"
            return
        # A kernel without marks does not show them, and asking again is useless.
        self.are_watched = all(map(is_marked, lost))
        if self.are_watched:
            for fd in lost:
                name = f"descriptor {fd} (sys.{_NAMES[fd]})"
                yield f"{name} was closed or replaced, and was put back\n"

    def _put_streams_back(self) -> Iterator[str]:
        _lost.clear()
        for fd, (name, original) in enumerate(zip(_NAMES, self._streams, strict=True)):
            was_lost = original.descriptor.lost
            if was_lost:
                original.__init__(fd)  # type: ignore[misc]
            setattr(sys, f"__{name}__", original)
            current = _stream(name)
            if current is original:
                if was_lost and fd != STDIN:  # exit() closes it
                    yield f"sys.{name} was closed, and was opened again\n"
            elif not _may_stay(current, fd):
                setattr(sys, name, original)
                yield f"sys.{name} was {_replacement(current)}, and was put back\n"


def _place(fd: int, target: int) -> None:
    """Move `fd` to the number `target`, also in programs that are started, and close `fd`."""
    if fd == target:
        os.set_inheritable(fd, True)
    else:
        os.dup2(fd, target)
        os.close(fd)


def _write_note(text: str) -> None:
    try:
        os.write(STDERR, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # it is closed, and could not be restored


def _replacement(stream: Any) -> str:
    return "None or deleted" if stream is None else f"left replaced by {type_name(stream)}"


def _may_stay(stream: Any, fd: int) -> bool:
    """Return whether a user's stream may replace the stream of descriptor `fd`.

    An input stream may while it is open, an output stream if it reaches the host: otherwise all
    later cells would be silent.
    """
    try:
        if stream is None or getattr(stream, "closed", False):
            return False
        if fd == STDIN:
            return True
        stream.flush()
        return stream.fileno() in (STDOUT, STDERR)
    # Boundary: the stream is the user's and may do anything.
    except BaseException:  # noqa: BLE001
        return False
