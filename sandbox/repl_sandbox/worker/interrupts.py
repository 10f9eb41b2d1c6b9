"""When a SIGINT becomes a KeyboardInterrupt: only in the running cell, never amid the wire.

An exception raised between reading bytes and keeping them would tear the stream, so the worker
defers interrupts around such sections. Signal handlers run in the main thread only, as cells do.
"""

from __future__ import annotations

import _signal as signal  # without the enums that the public module wraps around each call
from types import FrameType

_getsignal, _signal, _SIGINT = signal.getsignal, signal.signal, signal.SIGINT


class Interrupts:
    """The SIGINT handler of a worker. `armed`: a SIGINT raises; what arrives later is dropped."""

    def __init__(self) -> None:
        self.armed = False
        self._held = False
        self._pending = False
        self._handler = self._handle

    def arm(self) -> None:
        """From here on a SIGINT raises; the last cell may have put a handler of its own."""
        if _getsignal(_SIGINT) is not self._handler:
            _signal(_SIGINT, self._handler)
        # A signal handler of the session's code that raised may have left it held.
        self._held = self._pending = False
        self.armed = True

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

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
        elif self.armed:
            raise KeyboardInterrupt
