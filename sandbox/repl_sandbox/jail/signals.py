"""All signals blocked for a while, by calls for which Python makes no objects."""

from __future__ import annotations

import ctypes
import functools
from signal import SIG_BLOCK, SIG_SETMASK, SIGKILL, valid_signals
from typing import Final

from .libc import bound, fail, number
from .quiet_rows import SIGNALS

_BITS: Final = 8 * SIGNALS
# No mask that the kernel tells of: SIGKILL is never blocked.
_NONE_YET: Final = 1 << (SIGKILL - 1)


class Signals:
    """Of the thread that calls. What was blocked before is in memory, which a copy has too."""

    def __init__(self) -> None:
        """OSError: there are no system calls of known numbers."""
        self._all = ctypes.c_uint64(sum(1 << (number - 1) for number in valid_signals()))
        self._before = ctypes.c_uint64()
        every, before = ctypes.addressof(self._all), ctypes.addressof(self._before)
        call = "syscall", number("rt_sigprocmask")
        self._hold = bound(*call, int(SIG_BLOCK), every, before, SIGNALS)
        self._let_go = bound(*call, int(SIG_SETMASK), before, 0, SIGNALS)

    def hold(self) -> None:
        """Block all of them; `let_go` has to follow, whatever a handler of the code's raises here.

        Those that have come before are handled in the midst of it.
        """
        self._before.value = _NONE_YET
        if self._hold():
            fail("rt_sigprocmask")

    def let_go(self) -> None:
        """Block those that were blocked before; nothing, if `hold` has not come to its call."""
        if self._before.value != _NONE_YET and self._let_go():
            fail("rt_sigprocmask")

    @property
    def before(self) -> set[int]:
        """Those."""
        mask = self._before.value
        return {bit + 1 for bit in range(_BITS) if mask >> bit & 1}


@functools.cache
def prepare() -> Signals:
    """Those of this process, made when they are asked for first: in a template.

    What `bound` makes is garbage in cycles afterwards, which a zygote does not collect.

    Raises:
        OSError: as of `Signals`.
    """
    return Signals()
