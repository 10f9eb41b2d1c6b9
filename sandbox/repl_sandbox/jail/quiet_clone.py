"""A session's first process, cloned so that it begins with a chain of calls and not with Python.

clone(3) takes a function to begin with: that is setcontext(3), to the chain. Into a group of
version 2 only clone3(2) leads, after which both processes go on with the same calls. One is a
setcontext to the chain, at an address with a byte that is wrong; the one before puts as many bytes
of it right as the kernel says. That writes the child's id there, which is 1 in a pid namespace of
its own. In the parent it is 0: there the setcontext fails, and the parent comes back.
"""

from __future__ import annotations

import ctypes
import mmap
from _signal import SIGCHLD  # a plain number, which the public module's is not
from collections.abc import Callable
from typing import Final

from . import contexts
from .calls import Row
from .forks import CloneArguments
from .forms import Form
from .libc import CLONE_CHILD_SETTID, CLONE_INTO_CGROUP, CLONE_PARENT_SETTID, number
from .quiet_rows import WORD

# The highest byte of an address, in the order of bytes of x86-64 and aarch64, and what no address
# that a process has is there.
_TOP: Final = 7
_WRONG: Final = 0xFF


class _Notes(ctypes.Structure):
    _fields_ = (
        ("child", ctypes.c_int),  # in the parent, its id
        ("failure", ctypes.c_int),  # errno of clone3
        ("right", ctypes.c_uint64),  # what is in an address in place of _WRONG
        ("arguments", CloneArguments),
    )


class QuietClone:
    """Laid out once, in a template, for all that are forked from it."""

    def __init__(self, beginning: Form, saved: int, headroom: int) -> None:
        """`beginning`: what the child begins with. `saved`, `headroom`: as of `Chain`.

        Raises:
            OSError: this machine or its C library has not what it takes.
        """
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Notes), mmap.MAP_PRIVATE)
        self._notes = _Notes.from_buffer(self._memory)
        self._stack = mmap.mmap(-1, headroom, mmap.MAP_PRIVATE)
        self._clone = Form([self._clone_row(beginning, headroom)], saved, headroom)
        self._flags = 0
        self._into_group = Form(self._clone3_rows(), saved, headroom)
        self._into_group.fill_in("beginning", beginning.first | _WRONG << 8 * _TOP)
        self._into_group.fill_in("top", self._into_group.where("beginning") + _TOP)
        self._into_group.fill_in("wrong", 0)
        arguments = self._notes.arguments
        arguments.parent_tid = self._at("child")
        arguments.child_tid = self._into_group.where("wrong")
        arguments.exit_signal = SIGCHLD

    def _clone_row(self, beginning: Form, headroom: int) -> Row:
        begin = ctypes.cast(contexts.function("setcontext"), ctypes.c_void_p).value or 0
        stack = ctypes.addressof(ctypes.c_char.from_buffer(self._stack)) + headroom
        return "clone", begin, stack, "flags", beginning.first, self._at("child")

    def _clone3_rows(self) -> list[Row]:
        size = ctypes.sizeof(CloneArguments)
        return [
            ("syscall", number("clone3"), self._at("arguments"), size),
            ("memcpy", self._at("failure"), contexts.errno_at(), WORD),
            ("memcpy", "top", self._at("right"), "wrong"),
            ("setcontext", "beginning"),
        ]

    def _at(self, field: str) -> int:
        return ctypes.addressof(self._notes) + int(getattr(_Notes, field).offset)

    def clone(
        self, flags: int, folder: int | None, then: Callable[[], None] | None = None
    ) -> tuple[int, int]:
        """The child's id, or 0 and why there is none.

        The child comes here only when the chain that it begins with ends; it has no id here.
        `flags`: of new namespaces, one of process ids among them. `folder`: the group of version 2
        that the child is born into, as of `forks.fork_into_group`. `then` is the first that is
        called, in both. For whoever need not come back here it need not return: each function that
        does is some pages to copy.
        """
        notes = self._notes
        notes.child = 0
        if folder is None:
            if flags != self._flags:
                self._flags = flags
                self._clone.fill_in("flags", flags | SIGCHLD | CLONE_PARENT_SETTID)
            failure = self._clone.chain.run(then)
        else:
            flags |= CLONE_INTO_CGROUP | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID
            notes.arguments.flags, notes.arguments.cgroup = flags, folder
            self._into_group.chain.run(then)
            failure = notes.failure
        return notes.child, failure
