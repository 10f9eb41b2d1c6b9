"""When a SIGINT becomes a KeyboardInterrupt: only in the running cell, never amid the wire.

An exception raised between reading bytes and keeping them would tear the stream, so the worker
defers interrupts around such sections. Signal handlers run in the main thread only, as cells do.

A SIGINT that comes while no cell runs was late for the last one, or is early for the next, which
the worker has not begun: it may be busy with a copy of a large session, or have no processor.
"""

from __future__ import annotations

import _signal as signal  # without the enums that the public module wraps around each call
from collections.abc import Callable
from types import FrameType

_getsignal, _signal, _SIGINT = signal.getsignal, signal.signal, signal.SIGINT


class Interrupts:
    """The SIGINT handler of a worker. `armed`: a SIGINT raises.

    `meant` gives the cell that the last interrupt was meant for; without it early ones are dropped.
    """

    def __init__(self) -> None:
        self.armed = False
        self._held = False
        self._pending = False
        self._came = False  # when nothing was to be interrupted
        self.meant: Callable[[], int] | None = None
        self._handler = self._handle

    def arm(self, cell: int = 0) -> None:
        """From here on a SIGINT raises; the last cell may have put a handler of its own.

        One that came early for `cell` raises at once.
        """
        if _getsignal(_SIGINT) is not self._handler:
            _signal(_SIGINT, self._handler)
            self._came = True  # perhaps: another handler had it, or before the first cell none
        # A signal handler of the session's code that raised may have left it held.
        self._held = False
        if self._pending:
            self._came, self._pending = True, False
        self.armed = True
        if self._came and cell:
            self._came = False
            if self.meant is not None and self.meant() == cell:
                raise KeyboardInterrupt

    def hold(self) -> None:
        """Defer interrupts: what follows must not be torn."""
        self._held = True

    def allow(self) -> None:
        """Raise the interrupt that was deferred, if one was, and defer no more."""
        self._held = False
        if self._pending:
            self._pending = False
            if self.armed:
                raise KeyboardInterrupt
            self._came = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
        elif self.armed:
            raise KeyboardInterrupt
        else:
            self._came = True
