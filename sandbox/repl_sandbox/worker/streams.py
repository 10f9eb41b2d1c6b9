"""Standard streams of a session: pipes at descriptor level, unbuffered text above them.

Output of Python code, C code and child processes reaches the host in the order of writing.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..protocol.control import ASK, MARKS, is_marked, mark
from .namespace import HOST_MODULE, as_builtin, loaded_class, type_name

# `input` in a session, which has no terminal; `breakpoint` and `pdb` read with it.
#
# It works as usual where code has replaced `sys.stdin`. Otherwise it fails with a sentence that
# names the alternatives.

_NO_INPUT = "input() is not available: this session has no terminal"
_NO_DEBUGGER = (
    "a debugger needs a terminal, and this session has none: print() what is to be seen, or look "
    "at variables in the next cell, where they still are after an error"
)

_input = builtins.input
_frame = sys._getframe
_of_sys = vars(sys).get


def do_without() -> None:
    """Replace `input`; called once, in the template."""
    builtins.input = as_builtin(_ask, _input)


def _ask(prompt: object = "", /) -> str:
    try:
        return _input(prompt)
    except EOFError:
        if _of_sys("stdin") is not _of_sys("__stdin__"):
            raise
        if _is_of_debugger(_frame(1)):
            raise RuntimeError(_NO_DEBUGGER) from None
        raise EOFError(_NO_INPUT) from None


def _is_of_debugger(frame: FrameType) -> bool:
    """Return whether `frame`, which called `input`, is the command loop of `pdb`."""
    debugger = loaded_class("bdb", "Bdb")
    owner = type(frame.f_locals.get("self"))
    return debugger is not None and issubclass(owner, debugger)


_IONBF = 2  # stdio.h, the same in glibc and musl
_stream = vars(sys).get  # by name; None also where the user deleted it
_fcntl = fcntl.fcntl

STDIN, STDOUT, STDERR = 0, 1, 2
_NAMES = ("stdin", "stdout", "stderr")  # by descriptor
_MARK_OF_STDIN, _MARK_OF_STDOUT, _MARK_OF_STDERR = MARKS


class _Descriptor(io.FileIO):
    """A standard descriptor, which stays open; looks like the raw file of Python's own streams."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w" if fd else "r", closefd=False)
        self.name = f"<{_NAMES[fd]}>"  # in place of the number, as in every interpreter

    def seekable(self) -> bool:
        # A template has files there and its sessions pipes. Every object built on this one caches
        # the answer, and each change of an encoding, and each wrapper, would ask a pipe for its
        # position.
        return False

    @property
    def raw(self) -> io.FileIO:
        """The file itself: programs look for it below a buffer, which the output has none of."""
        return self


_Descriptor.__name__ = _Descriptor.__qualname__ = "FileIO"  # shown in errors and displays
_Descriptor.__module__ = "_io"


def _open(fd: int, stream: io.TextIOWrapper | None = None) -> io.TextIOWrapper:
    """Return a text stream over a descriptor: `stream`, to which loggers refer, opened again.

    Output is written through without a buffer, like `python -u`: one write to the pipe for each
    call.
    """
    descriptor = _Descriptor(fd)
    if stream is None:
        stream = io.TextIOWrapper.__new__(io.TextIOWrapper)
    initialize: Any = stream.__init__  # type: ignore[misc]
    if fd == STDIN:
        initialize(io.BufferedReader(descriptor), "utf-8")
    else:
        initialize(
            descriptor,
            "utf-8",
            errors="backslashreplace",
            newline="\n",
            line_buffering=fd == STDERR,
            write_through=True,
        )
    vars(stream)["mode"] = "w" if fd else "r"
    return stream


def _is_lost(stream: io.TextIOWrapper) -> bool:
    """Return whether a cell closed or detached the stream."""
    try:
        return stream.closed
    except ValueError:  # it was detached
        return True


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


def _install(fd: int) -> io.TextIOWrapper:
    stream = _open(fd)
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
        self._stdin, self._stdout, self._stderr = self._streams

    def restore(self, *, check_closed: bool = True) -> None:
        """Restore streams after a cell that closed, deleted or replaced them.

        The note about this is output of the cell. Without `check_closed`, the descriptors count as
        open; checking takes three system calls.
        """
        try:
            if (
                sys.stdout is self._stdout
                and sys.stderr is self._stderr
                and not self._stdout.closed
                and not self._stderr.closed
                and not self._stdin.closed
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
        except (AttributeError, OSError, ValueError):
            pass  # it was deleted, closed or detached
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
        for fd, (name, original) in enumerate(zip(_NAMES, self._streams, strict=True)):
            was_lost = _is_lost(original)
            if was_lost:
                _open(fd, original)
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


# `_out`: the full output of earlier cells, read from the host page by page.

# The host functions behind it; names that users cannot give to their own functions.
LENGTH = "_output_length"
TEXT = "_output_text"

# Characters that the host returns at most at once; longer slices take several reads.
PAGE = 1 << 18


class CellOutput:
    """Output of one cell to one stream. Slices are read on demand."""

    def __init__(self, call: Callable[..., Any], cell: int, stream: str) -> None:
        self._call = call
        self._cell = cell
        self._stream = stream
        self._length: int = call(LENGTH, (cell, stream), {})

    @property
    def stderr(self) -> CellOutput:
        """Output of the same cell to standard error."""
        return CellOutput(self._call, self._cell, "stderr")

    def page(self, number: int, size: int = 8192) -> str:
        """Return page `number`, from 0, of pages of `size` characters."""
        return self[number * size : (number + 1) * size]

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[str]]:
        return str, (str(self),)  # a copy or pickle outlives the session

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> str:
        if not isinstance(index, slice):
            index = range(self._length)[index]
            index = slice(index, index + 1)
        start, stop, step = index.indices(self._length)
        if step < 0:
            return str(self)[index]
        pages = [
            self._call(TEXT, (self._cell, self._stream, place, min(place + PAGE, stop)), {})
            for place in range(start, stop, PAGE)
        ]
        return "".join(pages)[::step]

    def __str__(self) -> str:
        return self[:]

    def __contains__(self, text: str) -> bool:
        return text in str(self)

    def __repr__(self) -> str:
        name = f"_out[{self._cell}]"
        return (
            f"<{self._stream} of cell {self._cell}: {self._length:,} characters; "
            f"read it with {name}[:2000], {name}.page(1) or str({name})>"
        )


class OutputHistory:
    """`_out[n]` is the output of cell n, `_out[-1]` that of the previous cell."""

    def __init__(self, call: Callable[..., Any], running: Callable[[], int]) -> None:
        self._call = call
        self._running = running
        self.__module__ = HOST_MODULE

    def __reduce_ex__(self, protocol: object) -> str:
        return "_out"

    def __getitem__(self, cell: int) -> CellOutput:
        number = self._running() + cell if cell < 0 else cell
        if not 0 < number < self._running():
            raise IndexError(f"no cell {cell} has ended; cells count from 1")
        return CellOutput(self._call, number, "stdout")

    def __repr__(self) -> str:
        return "<the output of earlier cells: _out[1], _out[-1], …>"
