"""All signals blocked for a while, by calls for which Python makes no objects."""

from __future__ import annotations

import ctypes
from signal import SIG_BLOCK, SIG_SETMASK, valid_signals
from typing import Final

from .libc import Call
from .quiet_rows import SIGNALS

_sigprocmask: Final = Call(
    "rt_sigprocmask", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
_BITS: Final = 8 * SIGNALS


class Signals:
    """Of the thread that calls. What was blocked before is in memory, which a copy has too."""

    def __init__(self) -> None:
        self._all = ctypes.c_uint64(sum(1 << (number - 1) for number in valid_signals()))
        self._before = ctypes.c_uint64()
        self._block = int(SIG_BLOCK), ctypes.addressof(self._all), ctypes.addressof(self._before)
        self._restore = int(SIG_SETMASK), ctypes.addressof(self._before), None

    def hold(self) -> None:
        """Block all of them."""
        if _sigprocmask.raw(*self._block, SIGNALS):
            _sigprocmask.failed()

    def let_go(self) -> None:
        """Block those that were blocked before."""
        if _sigprocmask.raw(*self._restore, SIGNALS):
            _sigprocmask.failed()

    @property
    def before(self) -> set[int]:
        """Those."""
        mask = self._before.value
        return {bit + 1 for bit in range(_BITS) if mask >> bit & 1}
