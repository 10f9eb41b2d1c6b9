"""What connects the host to one session, and how many lines of the session there are."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..cgroups.group import Group
from ..wire.connection import HostConnection
from .outside import Outside


class Family:
    """How many lines of one session are open or begun: the session itself and its branches.

    `fit` of the callers gives that many their room; one at a time, and never after the last left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lines = 1

    def join(self, most: int, fit: Callable[[int], None]) -> bool:
        """One more, unless there are `most`; whether there was room."""
        with self._lock:
            if self.lines >= most:
                return False
            fit(self.lines + 1)
            self.lines += 1
            return True

    def leave(self) -> bool:
        """One less; whether that was the last."""
        with self._lock:
            self.lines -= 1
            return not self.lines

    def refit(self, fit: Callable[[int], None]) -> None:
        """Take the room of those back that have left."""
        with self._lock:
            if self.lines:
                fit(self.lines)


@dataclass(slots=True)
class Links:
    """What connects the host to one session. `pid` is that of its init, as the host sees it."""

    number: int  # of the request that made the session
    pid: int
    worker_pid: int
    control: socket.socket
    worker: socket.socket
    stdout: int
    stderr: int
    connection: HostConnection
    outside: Outside
    group: Group | None = None
    # What its worker found of the layers that cannot be seen from outside, before any code ran.
    held: dict[str, int] = field(default_factory=dict)
    folder: str = ""  # its own directory, where it has no private mounts
    tier: str = "jailed"
    interpreter: tuple[str, str] = ("", "")  # version and implementation
    family: Family = field(default_factory=Family)

    def close(self) -> None:
        """Let go; the session ends, for its init reads end of file."""
        self.control.close()
        self.worker.close()
        os.close(self.stdout)
        os.close(self.stderr)
        group, self.group = self.group, None
        if group is not None:
            group.release()
