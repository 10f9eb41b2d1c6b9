"""Delivery of SIGINT as KeyboardInterrupt: only in the running cell, never during protocol I/O.

An exception between reading bytes and keeping them would corrupt the stream, so the worker defers
interrupts around such sections. Signal handlers run in the main thread only, as cells do.

A SIGINT that arrives while no cell runs was late for the last cell, or is early for the next one,
which the worker has not begun: the worker may be forking a snapshot of a large session, or may be
waiting for a processor.
"""

from __future__ import annotations

import _signal as signal  # without the enums that the public module wraps around each call
from collections.abc import Callable
from types import FrameType

_getsignal, _signal, _SIGINT = signal.getsignal, signal.signal, signal.SIGINT


class Interrupts:
    """SIGINT handler of a worker. While `armed`, a SIGINT raises.

    `target_cell` returns the cell that the last interrupt was for; without it, early interrupts are
    dropped.
    """

    def __init__(self) -> None:
        self.armed = False
        self._deferred = False
        self._pending = False
        self._arrived_early = False  # a SIGINT arrived while unarmed
        self.target_cell: Callable[[], int] | None = None
        self._handler = self._handle

    def arm(self, cell: int = 0) -> None:
        """Let SIGINT raise from here on; the last cell may have installed its own handler.

        A SIGINT that arrived early for `cell` raises at once.
        """
        if _getsignal(_SIGINT) is not self._handler:
            _signal(_SIGINT, self._handler)
            self._arrived_early = (
                True  # possibly: another handler got it, or before the first cell no handler
            )
        # A signal handler of the session's code that raised may have left interrupts deferred.
        self._deferred = False
        if self._pending:
            self._arrived_early, self._pending = True, False
        self.armed = True
        if self._arrived_early and cell:
            self._arrived_early = False
            if self.target_cell is not None and self.target_cell() == cell:
                raise KeyboardInterrupt

    def hold(self) -> None:
        """Defer interrupts during a section that must not be torn."""
        self._deferred = True

    def allow(self) -> None:
        """Raise the deferred interrupt, if there is one, and stop deferring."""
        self._deferred = False
        if self._pending:
            self._pending = False
            if self.armed:
                raise KeyboardInterrupt
            self._arrived_early = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._deferred:
            self._pending = True
        elif self.armed:
            raise KeyboardInterrupt
        else:
            self._arrived_early = True
