"""Chains of calls of the C library, which run without a line of Python: makecontext(3).

For the main thread, and processes that are forked from it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping
from signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals
from typing import Any, Final

# Bytes of a context, ucontext_t (968 and 4,560), and of its stack. No signal is handled there, and
# a system call needs few; what needs more goes on in the stacks below, of calls that are over. So
# little, because each page of them that is written is copied, in each process.
_CONTEXT: Final = {"x86_64": 1024, "aarch64": 5120}.get(os.uname().machine, 8192)
_STACK: Final = 128
# Below the first: functions of the C library that are little more than a call need some hundred.
_LEAST_HEADROOM: Final = 2048
_ALIGNED: Final = 64
# Stand for arguments until it is known where makecontext has put those.
MARKS: Final = tuple(0x5EA1_0000_F00D + (index << 16) for index in range(4))

_libc = ctypes.PyDLL(None)  # the GIL stays with the caller, in a child as well
_SIGNAL_SET: Final = 128  # bytes of sigset_t
_BYTES: Final = 256  # that there are


class _Context(ctypes.Structure):
    # How ucontext_t of glibc begins, on all machines: getcontext(3).
    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("link", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_size", ctypes.c_size_t),
    )


class Chain:
    """Calls that follow on one another. What each returns is lost, and no signal is handled.

    `stacks` is where memory begins that is put back before each run; `first` where the context of
    the first call is, for who goes there by setcontext(3).
    """

    def __init__(
        self, area: int, calls: int, saved: int, headroom: int = 0, unblocked: int = 0
    ) -> None:
        """`area`: where `size(calls, headroom)` bytes are free. `saved`: where the caller's context
        is put, and the last call goes on. `headroom`: bytes below all stacks, for a call that needs
        more than the stacks of those before it, which are over. `unblocked`: a signal that does in
        these calls what the system does by itself; 0 for none.

        Raises:
            OSError: the C library has no contexts.
        """
        try:
            self._swap, self._get = _libc["swapcontext"], _libc["getcontext"]
            self._make = _libc["makecontext"]
        except AttributeError as error:
            raise OSError(errno.ENOTSUP, str(error)) from error
        self._swap.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._move = ctypes.memmove
        self._errno = ctypes.c_int.from_address(errno_at())
        self.first = -(-area // _ALIGNED) * _ALIGNED
        self.stacks = self.first + calls * _CONTEXT + max(headroom, _LEAST_HEADROOM)
        self._calls, self._saved, self._size = calls, saved, calls * _STACK
        self._fresh = b""
        self._blocked = valid_signals() - {unblocked}

    def call(self, index: int, name: str, *arguments: int) -> None:
        """Let call number `index` be this, of at most six arguments."""
        context = _Context.from_address(self.first + index * _CONTEXT)
        before = pthread_sigmask(SIG_BLOCK, self._blocked)  # as it is in a context from then on
        try:
            self._get(ctypes.byref(context))
        finally:
            pthread_sigmask(SIG_SETMASK, before)
        following = self.first + (index + 1) * _CONTEXT
        context.link = following if index + 1 < self._calls else self._saved
        context.stack, context.stack_size = self.stacks + index * _STACK, _STACK
        passed = [ctypes.c_long(argument) for argument in arguments]
        self._make(ctypes.byref(context), _libc[name], len(passed), *passed)
        self._fresh = ctypes.string_at(self.stacks, self._size)

    def word(self, index: int, mark: int) -> ctypes.c_uint64:
        """The argument of call number `index` that is `mark` now.

        Raises:
            OSError: this C library keeps arguments in another way.
        """
        context = self.first + index * _CONTEXT
        laid, sought = ctypes.string_at(context, _CONTEXT), bytes(ctypes.c_uint64(mark))
        if laid.count(sought) != 1:
            raise OSError(errno.ENOTSUP, "makecontext keeps its arguments in another way")
        return ctypes.c_uint64.from_address(context + laid.index(sought))

    def refresh(self) -> None:
        """Make ready to be gone to once more: a call that was made has used its stack."""
        self._move(self.stacks, self._fresh, self._size)

    def run(self, then: Callable[[], None] | None = None) -> int:
        """Run them; where the last one goes on, the errno of one that has failed, 0 if none has.

        `then` is called there first.
        """
        self._move(self.stacks, self._fresh, self._size)  # as `refresh`
        self._errno.value = 0
        self._swap(self._saved, self.first)
        if then is None:
            return self._errno.value
        failure = self._errno.value
        then()
        return failure


class Table:
    """A byte for each byte, looked up by a chain.

    A call copies what is sought to the lowest byte of an argument, which is `address` before, and
    the next one, whose argument that is, has what is found there.
    """

    def __init__(self, known: Mapping[int, int], unknown: int) -> None:
        """`known`: what is found by what is sought; anything else finds `unknown`."""
        self._held = ctypes.create_string_buffer(2 * _BYTES)
        self.address = -(-ctypes.addressof(self._held) // _BYTES) * _BYTES
        found = (ctypes.c_ubyte * _BYTES).from_address(self.address)
        found[:] = [known.get(sought, unknown) for sought in range(_BYTES)]


def errno_at() -> int:
    """Where this thread's errno is; OSError as of `Chain`."""
    where = function("__errno_location")
    where.restype = ctypes.c_void_p
    address: int = where()
    return address


def function(name: str) -> Any:
    """A function of the C library; OSError where it has none of that name."""
    try:
        return _libc[name]
    except AttributeError as error:
        raise OSError(errno.ENOTSUP, str(error)) from error


def size(calls: int, headroom: int = 0) -> int:
    """Bytes for a chain of so many calls, wherever they begin."""
    return calls * (_CONTEXT + _STACK) + max(headroom, _LEAST_HEADROOM) + _ALIGNED


def saved() -> tuple[object, int]:
    """Memory for a context that is left, to be held, and its address."""
    held = ctypes.create_string_buffer(_CONTEXT + _ALIGNED)
    return held, -(-ctypes.addressof(held) // _ALIGNED) * _ALIGNED


def signals(*numbers: int) -> ctypes.Array[ctypes.c_char]:
    """A sigset_t of these."""
    made = (ctypes.c_char * _SIGNAL_SET)()
    _libc.sigemptyset(made)
    for number in numbers:
        _libc.sigaddset(made, number)
    return made
