"""What a first worker says when it is contained, and its wait for a command, without Python.

The end of the chain of `quiet_steps`. What is said depends on whether all went well, and a chain
has no conditions. So errno, which is not 0 from the first call on that has failed, is copied into
the arguments of what follows: a number of parts becomes more than writev(2) takes, that of a
descriptor more than there can be, and where no time limit was for ppoll(2), a pointer to nowhere.
None of them does anything then, and the worker says in Python what there is to say. What was found
without a call that failed makes one fail: as the highest byte of an address, where no process has
anything.
"""

from __future__ import annotations

import ctypes
import errno
import select
from _signal import SIG_BLOCK  # a plain number, which the public module's is not
from collections.abc import Iterator
from typing import Final

from .calls import Row
from .forms import Form
from .libc import number
from .quiet_rows import SIGNALS, WORD, Awaited

_NOT_TAKEN: Final = errno.ECANCELED
# So many bytes into a number: times 65,536, more parts and descriptors than there may be.
_SHIFT: Final = 2
_NOWHERE: Final = 1 << 63  # the address of nothing that is a process's
_TOP: Final = 7  # where the highest byte of an address is, in x86-64 and aarch64
# How many things may be found to be otherwise than they should.
FINDINGS: Final = 3


class _Part(ctypes.Structure):
    # readv(2), struct iovec
    _fields_ = (("base", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Notes(ctypes.Structure):
    _fields_ = (
        ("untold", ctypes.c_int),  # errno after the last word
        ("report", _Part),
        ("ready", _Part),
        ("awaited", Awaited),
    )


class Greeting:
    """Of the workers of a template: a report on the control socket, which is closed; `ready`."""

    def __init__(self, socket: int, report: bytes, ready: bytes, errno_at: int) -> None:
        """`socket`: the number of the worker's, on which it says `ready` and hears."""
        self._notes = _Notes(_NOT_TAKEN)
        self._notes.report = _Part(report, len(report))
        self._notes.ready = _Part(ready, len(ready))
        self._notes.awaited = Awaited(socket, select.POLLIN)
        # 0 in a worker from which both went out, and in nobody else.
        self.untold = ctypes.c_int.from_address(self._at("untold"))
        self._socket, self._errno = socket, errno_at

    def rows(self, findings: int) -> Iterator[Row]:
        """The end of a chain. `findings`: the address of bytes that are all 0 if all is well."""
        writev = number("writev")
        for index in range(FINDINGS):
            yield "memcpy", f"finding {index}, at", findings + index, 1
            # Nothing is blocked by the set that lies at 0.
            mask = number("rt_sigprocmask"), SIG_BLOCK
            yield "syscall", *mask, f"finding {index}", 0, SIGNALS
        yield "memcpy", "parts of report, behind", self._errno, _SHIFT
        yield "syscall", writev, "control", self._at("report"), "parts of report"
        yield "memcpy", "left, behind", self._errno, _SHIFT
        yield "close", "left"
        yield "memcpy", "parts of ready, behind", self._errno, _SHIFT
        yield "syscall", writev, self._socket, self._at("ready"), "parts of ready"
        yield "memcpy", self._at("untold"), self._errno, WORD
        yield "memcpy", "limit, at", self._errno, WORD
        yield "syscall", number("ppoll"), self._at("awaited"), 1, "limit", 0, SIGNALS

    def fill_in(self, form: Form) -> None:
        """What is the same for all sessions, in the chain of `rows`."""
        for name in ("parts of report", "parts of ready", "left"):
            form.fill_in(f"{name}, behind", form.where(name) + _SHIFT)
        for index in range(FINDINGS):
            form.fill_in(f"finding {index}", 0)
            form.fill_in(f"finding {index}, at", form.where(f"finding {index}") + _TOP)
        form.fill_in("limit, at", form.where("limit"))
        form.fill_in("parts of report", 1)
        form.fill_in("parts of ready", 1)

    def prepare(self, form: Form, control: int, *, waits: bool) -> None:
        """In the zygote: what is the next session's. `waits`: until there is a command."""
        form.fill_in("control", control)
        form.fill_in("left", control)
        form.fill_in("limit", 0 if waits else _NOWHERE)

    def _at(self, field: str) -> int:
        return ctypes.addressof(self._notes) + int(getattr(_Notes, field).offset)
