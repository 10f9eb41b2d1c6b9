"""Rows of chains that init and its first worker have in common, and how their blanks are filled."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from typing import Final

from . import processes
from .calls import Row
from .forms import Form
from .libc import number

# Room, for blanks are laid out beforehand. A session keeps eight descriptors.
_STRETCHES: Final = 9
# The id of no process: /proc/sys/kernel/pid_max is less.
_NOBODY: Final = 0x7FFF_FFFF
WORD: Final = ctypes.sizeof(ctypes.c_int)  # bytes of errno, and of what pipes here bring
SIGNALS: Final = 8  # bytes of the kernel's sigset_t


class Awaited(ctypes.Structure):
    """struct pollfd of poll(2)."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("found", ctypes.c_short))


def closing() -> Iterator[Row]:
    """`recipe.keep_descriptors`."""
    for index in range(_STRETCHES):
        yield "syscall", number("close_range"), f"first {index}", f"last {index}", 0


def waiting_for_maps() -> Iterator[Row]:
    """`recipe.wait_for_maps`.

    What comes is "this process", of which there is a process group. If it is the end of the file,
    there remains nobody, and getpgid fails.
    """
    yield "read", "mapped", "maps at", WORD
    yield "getpgid", "maps"
    yield "close", "mapped"


def fill_in_maps(form: Form) -> None:
    """What is the same for all sessions."""
    form.fill_in("maps at", form.where("maps"))
    form.fill_in("maps", _NOBODY)


def fill_in_stretches(form: Form, kept: set[int]) -> None:
    """All descriptors but those that are `kept`; OSError if they lie in too many places."""
    stretches = list(processes.stretches(kept))
    if len(stretches) > _STRETCHES:
        raise OSError(errno.E2BIG, "there is no room for so many descriptors")
    nothing = [(processes.LAST_DESCRIPTOR,) * 2] * (_STRETCHES - len(stretches))
    for index, (first, last) in enumerate((*stretches, *nothing)):
        form.fill_in(f"first {index}", first)
        form.fill_in(f"last {index}", last)
