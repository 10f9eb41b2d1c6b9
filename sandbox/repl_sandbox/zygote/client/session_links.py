"""`SessionLinks`: the host's connections to one session, and the number of its branches."""

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
from ...protocol.control_channel import MAX_MESSAGE
from .isolation_baseline import IsolationBaseline

# init needs milliseconds; on a machine that swaps or is overloaded a thousand times that.
_END_TIMEOUT = 30.0


class SessionFamily:
    """The number of open branches of one session, the session itself included.

    The callers' `adjust` adapts the resources to that number: one call at a time, and none after
    the last branch has left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.branches = 1

    def join(self, limit: int, adjust: Callable[[int], None]) -> bool:
        """Add a branch, unless there are `limit`; return whether it was added."""
        with self._lock:
            if self.branches >= limit:
                return False
            adjust(self.branches + 1)
            self.branches += 1
            return True

    def leave(self) -> bool:
        """Remove a branch; return whether it was the last."""
        with self._lock:
            self.branches -= 1
            return not self.branches

    def adjust(self, adjust: Callable[[int], None]) -> None:
        """Release the resources of closed branches."""
        with self._lock:
            if self.branches:
                adjust(self.branches)


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionLinks:
    """The host's connections to one session. `pid` is that of its init, as the host sees it."""

    number: int  # the number of the request that made the session
    pid: int
    worker_pid: int
    control: socket.socket
    worker: socket.socket
    stdout: int
    stderr: int
    connection: HostConnection
    baseline: IsolationBaseline
    group: SessionCgroup | None = None
    # The worker's report, before any code ran, on layers that cannot be seen from outside.
    findings: dict[str, int] = field(default_factory=dict)
    folder: str = ""  # its own directory, if it has no private mounts
    tier: str = "jailed"
    interpreter: tuple[str, str] = ("", "")  # version and implementation
    family: SessionFamily = field(default_factory=SessionFamily)

    def __post_init__(self) -> None:
        _open.add(self)

    @property
    def ended(self) -> bool:
        """True if the session's init is gone, and the session with it."""
        poller = select.poll()
        poller.register(self.control, 0)  # reported without a request: the other end is closed
        return bool(poller.poll(0))

    def cpu_clock(self) -> Callable[[], float]:
        """Return the clock of the current worker's CPU time."""
        if self.baseline.is_remote:
            return partial(self.baseline.query, "cpu_clock", self.worker_pid)
        return partial(time.clock_gettime, process_cpu(self.worker_pid))

    @property
    def has_input(self) -> bool:
        """True if the worker has sent something that was not read yet, or is gone."""
        poller = select.poll()
        poller.register(self.worker, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the connections; the session ends, because its init reads end of file."""
        _open.discard(self)  # the numbers may be reused from here on
        self.control.close()
        self.worker.close()
        os.close(self.stdout)
        os.close(self.stderr)
        group, self.group = self.group, None
        if group is not None:
            group.release()

    def end_branch(self) -> None:
        """End one branch of a session that has others: when this returns its processes are gone."""
        try:
            self.control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # init is gone, and the session with it
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        until = time.monotonic() + _END_TIMEOUT
        while poller.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                if not self.control.recv(MAX_MESSAGE):
                    return
            except OSError:
                return

    def redirect(self, fd: int) -> None:
        """Replace the descriptor of each connection by `fd`, under the same number."""
        for end in (self.control.fileno(), self.worker.fileno(), self.stdout, self.stderr):
            if end >= 0:
                os.dup2(fd, end, inheritable=False)


_open: weakref.WeakSet[SessionLinks] = weakref.WeakSet()


def _cut() -> None:
    """In a child of the host: disconnect from the session.

    The fork may come during a call, in a signal handler or an `on_output`. The child that goes on
    there, or exits, finds each session ended, reads no answer of its parent's and sends nothing in
    its name.
    """
    if not _open:
        return
    with suppress(OSError):  # the child cannot open anything more
        ended, other = socket.socketpair()
        other.close()
        with ended:
            for links in list(_open):
                links.redirect(ended.fileno())


os.register_at_fork(after_in_child=_cut)
