"""A fork whose child waits for a signal before it runs a line of Python.

Whatever a child writes to after a fork is copied, page by page: to wait in Python is some 60 pages,
and the parent has to wait for them too. Here the C library does it all, in contexts that follow on
one another (makecontext(3)). Parent and child run the same ones, to different effect:

1. raise(3): a signal of the parent's own, for a child inherits none that are pending.
2. clone(2): the kernel writes the child's id to the parent's memory, and to the child's as well,
   there into the last argument of
3. close_range(2): of all from the given one on in the child; of none in the parent, whose last is
   less than its first.
4. setpgid(2): refused in the parent, which leads a session.
5. sigwait(3): over at once in the parent.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from _signal import SIG_BLOCK, SIG_SETMASK, SIGCHLD, SIGSTKFLT, pthread_sigmask, valid_signals
from typing import Final

from .libc import CLONE_CHILD_SETTID, CLONE_PARENT, CLONE_PARENT_SETTID, number

# The parent's signal. One that Linux has no use for, so that code has none pending; and none that
# is queued (SIGRTMIN and above): it would be refused where code has used up what may be queued.
_OURS: Final = SIGSTKFLT
_CALLS: Final = 5
# Bytes of a context, ucontext_t (968 and 4,560), and of its stack: these calls need some hundred,
# and no signal is handled there.
_CONTEXT: Final = {"x86_64": 1024, "aarch64": 5120}.get(os.uname().machine, 8192)
_STACK: Final = 1024
_ALIGNED: Final = 64
_SIGNAL_SET: Final = 128
# Stand for the numbers of descriptors until it is known where makecontext has put those.
_MARKS: Final = 0x5EA1_F00D, 0x5EA2_F00D
# The id is written so many bytes into the last number, which the kernel takes 4 of: any that is no
# multiple of 2**16 is above all descriptors then.
_SHIFT: Final = 2

_libc = ctypes.PyDLL(None)  # the GIL stays with the caller, in the child as well


class _Context(ctypes.Structure):
    # How ucontext_t of glibc begins, on all machines: getcontext(3).
    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("link", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_size", ctypes.c_size_t),
    )


class QuietFork:
    """Laid out once, in a template, for all that are forked from it."""

    def __init__(self, wakes: int) -> None:
        """`wakes`: the signal that the child waits for.

        Raises:
            OSError: this machine or its C library has not what it takes.
        """
        self._wakes = wakes
        try:
            self._swap = _libc["swapcontext"]
            self._make, self._get = _libc["makecontext"], _libc["getcontext"]
        except AttributeError as error:
            raise OSError(errno.ENOTSUP, str(error)) from error
        self._swap.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        # One context for each call, one that swapcontext saves, and the stacks.
        size = (_CALLS + 1) * _CONTEXT + _CALLS * _STACK
        self._area = ctypes.create_string_buffer(size + _ALIGNED)
        self._begin = -(-ctypes.addressof(self._area) // _ALIGNED) * _ALIGNED
        self._saved = self._context(_CALLS)
        self._stacks = self._saved + _CONTEXT
        self._id, self._heard = ctypes.c_int(), ctypes.c_int()
        self._signals = ctypes.create_string_buffer(_SIGNAL_SET)
        before = pthread_sigmask(SIG_BLOCK, valid_signals())  # as it is in a context from then on
        try:
            self._lay_out()
        finally:
            pthread_sigmask(SIG_SETMASK, before)
        self._move, self._size = ctypes.memmove, _CALLS * _STACK
        self._fresh = ctypes.string_at(self._stacks, self._size)

    def __call__(self, closed: int) -> int:
        """Fork: the child's id, and 0 in the child when it has been woken.

        The child is the caller's sibling, as of `forks.fork_beside`; it closes all descriptors from
        `closed` on, then leads a process group, and then waits. The caller leads a session, has no
        other thread, and has blocked all signals, which so are the child's.

        Raises:
            OSError: there is no room for another process.
        """
        self._closed.value, self._last.value = closed, 0
        self._id.value = self._heard.value = 0  # this process may have been woken itself
        self._move(self._stacks, self._fresh, self._size)
        self._swap(self._saved, self._begin)
        if self._heard.value == self._wakes:
            return 0
        if self._id.value == 0:
            raise OSError(errno.EAGAIN, "clone: no room for another process")
        return self._id.value

    def _lay_out(self) -> None:
        signals, heard = ctypes.addressof(self._signals), ctypes.addressof(self._heard)
        _libc.sigemptyset(self._signals)
        for signal in (_OURS, self._wakes):
            _libc.sigaddset(self._signals, signal)
        self._call(2, "syscall", number("close_range"), *_MARKS, 0)
        self._closed, self._last = (self._word(2, mark) for mark in _MARKS)
        flags = SIGCHLD | CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID
        ids = [ctypes.addressof(self._last) + _SHIFT, 0]
        if os.uname().machine == "aarch64":  # whose clone has the last two the other way round
            ids.reverse()
        self._call(0, "raise", _OURS)
        self._call(1, "syscall", number("clone"), flags, 0, ctypes.addressof(self._id), *ids)
        self._call(3, "setpgid", 0, 0)
        self._call(4, "sigwait", signals, heard)

    def _context(self, index: int) -> int:
        return self._begin + index * _CONTEXT

    def _call(self, index: int, name: str, *arguments: int) -> None:
        """Have context number `index` call this, and go on with the next one."""
        context = _Context.from_address(self._context(index))
        self._get(ctypes.byref(context))
        context.link = self._context(index + 1)
        context.stack, context.stack_size = self._stacks + index * _STACK, _STACK
        passed = [ctypes.c_long(argument) for argument in arguments]
        self._make(ctypes.byref(context), _libc[name], len(passed), *passed)

    def _word(self, index: int, mark: int) -> ctypes.c_uint64:
        """The argument of that context which is `mark` now."""
        laid, sought = ctypes.string_at(self._context(index), _CONTEXT), ctypes.c_uint64(mark)
        if laid.count(bytes(sought)) != 1:
            raise OSError(errno.ENOTSUP, "makecontext keeps its arguments in another way")
        return ctypes.c_uint64.from_address(self._context(index) + laid.index(bytes(sought)))


@functools.cache
def prepare(wakes: int) -> QuietFork | None:
    """That of this process, made when it is asked for first; None where it cannot be."""
    try:
        return QuietFork(wakes)
    except OSError:
        return None
