"""`TakeoverGuards`: garbage collection off and more descriptors, until a takeover is complete."""

from __future__ import annotations

import gc
import resource

# Taken once: code may replace those of the modules.
_is_collecting, _stop_collecting, _collect = gc.isenabled, gc.disable, gc.enable
_getrlimit, _setrlimit = resource.getrlimit, resource.setrlimit
_NOFILE, _UNLIMITED = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY


class TakeoverGuards:
    """`spare_files`: the number of descriptors that a process that takes over may use besides."""

    def __init__(self, spare_files: int) -> None:
        self._spare_files = spare_files
        self._collects = False  # whether garbage collection was on
        self._file_limit = (0, 0)

    def hold_garbage(self) -> None:
        """Disable garbage collection.

        A collection may run code, and close lost descriptors, whose numbers the worker's own may
        have.
        """
        self._collects = self._collects or _is_collecting()
        _stop_collecting()

    def release_garbage(self) -> None:
        """Enable garbage collection, if it was on."""
        if self._collects:
            self._collects = False
            _collect()

    def begin(self) -> None:
        """Raise the limit of descriptors above the code's, and disable garbage collection."""
        self.hold_garbage()
        self._file_limit = _getrlimit(_NOFILE)
        _setrlimit(_NOFILE, (self._raised_limit(self._file_limit), self._file_limit[1]))

    def end(self) -> None:
        """Restore the limit of descriptors, and garbage collection."""
        _setrlimit(_NOFILE, self._file_limit)
        self.release_garbage()

    def file_limits(self) -> tuple[int, int]:
        """The most descriptors of the code, and of a process that takes over."""
        limit = _getrlimit(_NOFILE)
        return limit[0], self._raised_limit(limit)

    def _raised_limit(self, limit: tuple[int, int]) -> int:
        soft, hard = limit
        raised = soft + self._spare_files
        return raised if hard == _UNLIMITED else min(raised, hard)
