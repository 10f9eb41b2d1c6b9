"""A fork whose child waits for a signal before it runs a line of Python.

Whatever a child writes to after a fork is copied, page by page: to wait in Python is some 60 pages,
and the parent has to wait for them too. Here the C library does it all, in a chain of contexts
(`contexts`). Parent and child run the same one, to different effect:

1. raise(3): a signal of the parent's own, for a child inherits none that are pending.
2. clone(2): the kernel writes the child's id to the parent's memory, and to the child's as well,
   there into the last argument of
3. close_range(2): of all from the given one on in the child; of none in the parent, whose last is
   less than its first.
4. setpgid(2): refused in the parent, which leads a session.
5. sigwait(3): over at once in the parent.
6. setcontext(3), if the parent is to rest: to a chain of its own, which says what has to be said of
   the child and waits until the parent is spoken to. Its address has a byte that is wrong but where
   the signal that was waited for is the parent's, and one where the clone has failed.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import select
from _signal import SIGCHLD, SIGKILL, SIGSTKFLT  # plain numbers, which signal's are not
from collections.abc import Iterator
from typing import Final, Protocol

from . import contexts
from .calls import Row
from .contexts import MARKS, Chain
from .forms import Form
from .libc import CLONE_CHILD_SETTID, CLONE_PARENT, CLONE_PARENT_SETTID, number
from .quiet_rows import SIGNALS, Awaited

# The parent's signal. One that Linux has no use for, so that code has none pending; and none that
# is queued (SIGRTMIN and above): it would be refused where code has used up what may be queued.
_OURS: Final = SIGSTKFLT
_RAISE, _CLONE, _NOTE, _CLOSE, _GROUP, _WAIT = range(6)
_SEEK, _FOUND, _FAILED, _REST = range(6, 10)
_CALLS: Final = 10
# The child's id is written so many bytes into the last number of close_range, which the kernel
# takes 4 of: any that is no multiple of 2**16 is above all descriptors then.
_SHIFT: Final = 2
_INT: Final = 4
# The two highest bytes of an address, which are 0, in the order of x86-64 and aarch64; and what no
# address of a process has there.
_NEXT, _TOP, _WRONG = 6, 7, 0xFF
# Bytes of stack for handlers of signals that come while the parent rests: as in `quiet_init`.
_HEADROOM: Final = 64 << 10

_getpid = os.getpid


class Rest(Protocol):
    """What a parent does after it has forked: it waits until there is something on `socket`."""

    @property
    def socket(self) -> int:
        """A descriptor."""

    @property
    def child(self) -> int:
        """Where the child's id is put before, an address of 4 bytes."""

    @property
    def switch(self) -> tuple[int, int]:
        """Where a byte is put then, and which."""

    @property
    def ended(self) -> int:
        """A process that is killed then; 0: none."""

    @property
    def blocked(self) -> int:
        """The signals that are not handled while it waits, one bit for each from the first on."""


class QuietFork:
    """Laid out once, in a template, for all that are forked from it."""

    def __init__(self, wakes: int) -> None:
        """`wakes`: the signal that the child waits for.

        Raises:
            OSError: this machine or its C library has not what it takes.
        """
        # Pages of their own: in a child that waits they are as it has made them, whatever becomes
        # of the same ones in its parent.
        self._area = mmap.mmap(-1, contexts.size(_CALLS), mmap.MAP_PRIVATE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        self._held, self._saved = contexts.saved()
        self._chain = Chain(begin, _CALLS, self._saved)
        # Where the first call's stack ends: what the others use of theirs does not reach so far.
        self._heard = ctypes.c_int.from_address(self._chain.stacks)
        self._wakes, self._id, self._failed = wakes, ctypes.c_int(), ctypes.c_int()
        self._awaited, self._blocked = Awaited(0, select.POLLIN), ctypes.c_uint64()
        self._switched = ctypes.c_ubyte()
        self._kill, self._nothing = number("kill"), number("getpid")
        self._resting = Form(list(self._resting_rows()), self._saved, _HEADROOM)
        self._lay_out()

    def __call__(self, closed: int, rest: Rest | None = None) -> int:
        """Fork: the child's id, and 0 in the child when it has been woken.

        The child is the caller's sibling, as of `forks.fork_beside`; it closes all descriptors from
        `closed` on, then leads a process group, and then waits. The caller leads a session, has no
        other thread, and has blocked all signals, which so are the child's. With `rest` it comes
        back when that is over.

        Raises:
            OSError: there is no room for another process.
        """
        self.prepare(closed, rest)
        me = _getpid()
        self._chain.run()
        if self.is_woken(me):
            return 0
        if self._id.value == 0:
            raise OSError(errno.EAGAIN, "clone: no room for another process")
        return self._id.value

    def prepare(self, closed: int, rest: Rest | None = None) -> int:
        """Do what a fork does before it; of use to who rehearses. Returns 0."""
        # Where the kernel and the chain have written, in a copy that was woken too.
        self._last.value = self._id.value = self._failed.value = 0
        self._seek.value = self._table.address
        self._rest.value = 0 if rest is None else self._prepared(rest)
        self._closed.value = closed
        return 0

    def _prepared(self, rest: Rest) -> int:
        """What has to be gone to for this, with a byte that is wrong."""
        self._awaited.fd, self._blocked.value = rest.socket, rest.blocked
        switch, self._switched.value = rest.switch
        form = self._resting
        form.fill_in("child", rest.child)
        form.fill_in("switch", switch)
        form.fill_in("end", self._kill if rest.ended else self._nothing)
        form.fill_in("ended", rest.ended)
        form.chain.refresh()
        return form.first | _WRONG << 8 * _TOP

    def _resting_rows(self) -> Iterator[Row]:
        yield "memcpy", "child", ctypes.addressof(self._id), _INT
        yield "memcpy", "switch", ctypes.addressof(self._switched), 1
        yield "syscall", "end", "ended", SIGKILL
        waiting = ctypes.addressof(self._awaited), 1, 0, ctypes.addressof(self._blocked)
        yield "syscall", number("ppoll"), *waiting, SIGNALS

    def is_woken(self, parent: int) -> bool:
        """Whether this process is a child that has waited, where it comes back to `saved`.

        `parent`: the process id of the one that left it. A child that was sent what was not meant
        for it ends.
        """
        if self._heard.value == self._wakes:
            return True
        if _getpid() != parent:
            os._exit(1)
        return False

    def _lay_out(self) -> None:
        call, argument = self._chain.call, self._chain.word
        call(_RAISE, "raise", _OURS)
        first, second, *_ = MARKS
        call(_CLOSE, "syscall", number("close_range"), first, second, 0)
        self._closed, self._last = argument(_CLOSE, first), argument(_CLOSE, second)
        flags = SIGCHLD | CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID
        ids = [ctypes.addressof(self._last) + _SHIFT, 0]
        if os.uname().machine == "aarch64":  # whose clone has the last two the other way round
            ids.reverse()
        call(_CLONE, "syscall", number("clone"), flags, 0, ctypes.addressof(self._id), *ids)
        call(_NOTE, "memcpy", ctypes.addressof(self._failed), contexts.errno_at(), _INT)
        call(_GROUP, "setpgid", 0, 0)
        self._signals = contexts.signals(_OURS, self._wakes)
        heard = ctypes.addressof(self._signals), ctypes.addressof(self._heard)
        call(_WAIT, "sigwait", *heard)
        call(_REST, "setcontext", first)
        self._rest = argument(_REST, first)
        self._table = contexts.Table({_OURS: 0}, _WRONG)
        bytes_of_it = ctypes.addressof(self._rest)
        call(_FAILED, "memcpy", bytes_of_it + _NEXT, ctypes.addressof(self._failed), 1)
        call(_FOUND, "memcpy", bytes_of_it + _TOP, first, 1)
        self._seek = argument(_FOUND, first)
        call(_SEEK, "memcpy", ctypes.addressof(self._seek), ctypes.addressof(self._heard), 1)


@functools.cache
def prepare(wakes: int) -> QuietFork | None:
    """That of this process, made when it is asked for first; None where it cannot be."""
    try:
        return QuietFork(wakes)
    except OSError:
        return None
