"""`FileChanges`: whether the files of a workspace have changed since the last check."""

from __future__ import annotations

import os
import stat
import time

# The most files and directories to check and keep (workspace_versions.py): each takes microseconds,
# after every cell that changes one. More count as changed.
MAX_FILES = 10_000

# Nanoseconds. Two writes within this time may leave the same time of change: before Linux 6.13 that
# is the time of the last tick, of which there are at least a hundred a second.
_TICK = 20_000_000
# The clock of the last tick, CLOCK_REALTIME_COARSE of clock_gettime(2). On a machine that gets no
# processor for a moment it may stand still for many ticks.
_COARSE = 5

_Key = tuple[int, int, int, int, int]


class FileChanges:
    """The state of the directory `path`, by attributes that change with its content."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: dict[str, _Key] = {}
        self._marker = 0
        self._fresh = False  # files may have changed again without a trace

    def changed(self, marker: int) -> bool:
        """Return whether anything is new or different since the last call.

        `marker` is a number that others change when they change something, or note its state.
        """
        others, self._marker = marker != self._marker, marker
        try:
            if not self._seen and not others and not os.listdir(self._path):
                return False
        except OSError:  # out of descriptors, or the directory is unreadable
            return True
        others = others or self._fresh
        seen = self._seen
        unsettled_since = unsettled()
        self._seen = _scan(self._path)
        self._fresh = any(key[4] >= unsettled_since for key in self._seen.values())
        return others or seen != self._seen


def unsettled() -> int:
    """Nanoseconds since 1970: a file that changed at that time or later can change once more and
    have the same time of change.
    """
    return min(time.time_ns() - _TICK, time.clock_gettime_ns(_COARSE))


def _scan(path: str) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    pending = [path]
    while pending and len(found) < MAX_FILES:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (
                        status.st_mode,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        except OSError:
            continue  # gone by now, or closed by its owner
    return found
