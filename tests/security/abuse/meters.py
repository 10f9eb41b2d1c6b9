"""The most that a session held while its case ran: memory of all processes, and its workspace.

Sampled from the host, since what a session says of itself is no evidence.
"""

from __future__ import annotations

import os
import threading

from . import processes

_PERIOD = 0.02


class Meters:
    """Looks at the session of init `pid` from `with` to its end."""

    def __init__(self, pid: int) -> None:
        self.memory = 0
        self.workspace = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meters:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_PERIOD):
            pids = processes.descendants(self._pid)
            self.memory = max(self.memory, processes.memory([self._pid, *pids]))
            for pid in pids[:1]:
                self.workspace = max(self.workspace, _used(f"/proc/{pid}/root/workspace"))


def _used(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize
