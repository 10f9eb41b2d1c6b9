"""What connects the host to one session, and how many lines of the session there are."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ...limits.cgroups.session_cgroup import SessionCgroup
from ...limits.process_queries import process_cpu
from ...protocol.connection import HostConnection
from .isolation_baseline import IsolationBaseline


class SessionFamily:
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


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionLinks:
    """What connects the host to one session. `pid` is that of its init, as the host sees it."""

    number: int  # of the request that made the session
    pid: int
    worker_pid: int
    control: socket.socket
    worker: socket.socket
    stdout: int
    stderr: int
    connection: HostConnection
    outside: IsolationBaseline
    group: SessionCgroup | None = None
    # What its worker found of the layers that cannot be seen from outside, before any code ran.
    held: dict[str, int] = field(default_factory=dict)
    folder: str = ""  # its own directory, where it has no private mounts
    tier: str = "jailed"
    interpreter: tuple[str, str] = ("", "")  # version and implementation
    family: SessionFamily = field(default_factory=SessionFamily)

    def __post_init__(self) -> None:
        _open.add(self)

    @property
    def ended(self) -> bool:
        """Whether the session's init is gone, and the session with it."""
        poller = select.poll()
        poller.register(self.control, 0)  # what is told unasked: that nobody is at the other end
        return bool(poller.poll(0))

    def cpu_clock(self) -> Callable[[], float]:
        """What tells the CPU seconds of the worker of now."""
        if self.outside.is_apart:
            return partial(self.outside.look, "cpu_clock", self.worker_pid)
        return partial(time.clock_gettime, process_cpu(self.worker_pid))

    @property
    def speaks(self) -> bool:
        """Whether the worker has said something that was not read yet, or is gone."""
        poller = select.poll()
        poller.register(self.worker, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Let go; the session ends, for its init reads end of file."""
        _open.discard(self)  # from here on the numbers may be others'
        self.control.close()
        self.worker.close()
        os.close(self.stdout)
        os.close(self.stderr)
        group, self.group = self.group, None
        if group is not None:
            group.release()

    def lead_to(self, fd: int) -> None:
        """Have every end of these be `fd`, under the number that it has."""
        for end in (self.control.fileno(), self.worker.fileno(), self.stdout, self.stderr):
            if end >= 0:
                os.dup2(fd, end, inheritable=False)


_open: weakref.WeakSet[SessionLinks] = weakref.WeakSet()


def _cut() -> None:
    """In a child of the host: nothing leads to its sessions any more.

    The fork may come amid a call, by a handler of signals or an `on_output`. The child that goes on
    there, or is on its way out, finds each session ended, takes no answer of its parent's and says
    nothing in its name.
    """
    if not _open:
        return
    with suppress(OSError):  # the child may open nothing more
        ended, other = socket.socketpair()
        other.close()
        with ended:
            for links in list(_open):
                links.lead_to(ended.fileno())


os.register_at_fork(after_in_child=_cut)
