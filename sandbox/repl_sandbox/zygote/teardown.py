"""`TeardownQueue`: sessions that are ending, until all their processes are gone.

Ending a session takes as long as starting one, so the zygote does not wait for it: a descriptor of
init reports the end, polled with the zygote's other input.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

# Seconds. Ending a session takes milliseconds, or as long as the kernel needs to free its memory.
_TIMEOUT = 10.0
# Each needs a descriptor, of which a process has 1,024 by default.
_MAX_SESSIONS = 128


@dataclass(slots=True)
class SessionTeardown:
    """One ending session. `requests` are the requests to answer when it has ended."""

    session: int
    pid: int
    pidfd: int
    deadline: float | None  # by time.monotonic: its init has had too long then
    requests: list[int] = field(default_factory=list)


class TeardownQueue:
    """The ending sessions of one zygote. Their descriptors, and that of `host`, are in `poller`.

    If one has to end before the next can, requests of the host wait meanwhile. `jailed`: the kernel
    ends a session with its init; in other tiers the init does that.
    """

    def __init__(self, poller: select.poll, host: int, *, jailed: bool) -> None:
        self._poller = poller
        self._host: int | None = host
        self._jailed = jailed
        self._by_pidfd: dict[int, SessionTeardown] = {}

    def __iter__(self) -> Iterator[SessionTeardown]:
        return iter(self._by_pidfd.values())

    @property
    def full(self) -> bool:
        """True if one has to end before another can start ending."""
        return len(self._by_pidfd) >= _MAX_SESSIONS

    def of(self, session: int) -> SessionTeardown | None:
        """The entry of `session`, if it is ending."""
        return next((each for each in self if each.session == session), None)

    def begin(self, session: int, pid: int) -> SessionTeardown:
        """Tell the init `pid` of `session` to end."""
        # It may have ended by itself; until it is reaped, the pid is not reused.
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL if self._jailed else signal.SIGTERM)
        teardown = SessionTeardown(
            session, pid, pidfd, None if self._jailed else time.monotonic() + _TIMEOUT
        )
        self._by_pidfd[pidfd] = teardown
        self._poller.register(pidfd, select.POLLIN)
        if self.full:
            self._poll_host(0)
        return teardown

    def reap(self, pidfd: int) -> SessionTeardown:
        """Reap the session whose descriptor reports its end."""
        if self.full:
            self._poll_host(select.POLLIN)
        teardown = self._by_pidfd.pop(pidfd)
        os.waitpid(teardown.pid, 0)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        return teardown

    def _poll_host(self, events: int) -> None:
        if self._host is not None:
            self._poller.modify(self._host, events)

    def forget_host(self) -> None:
        """Forget the host, which is gone."""
        if self._host is not None:
            self._poller.unregister(self._host)
            self._host = None

    def timeout_ms(self) -> float | None:
        """Milliseconds until `kill_overdue` has something to do; None if never."""
        if self._jailed:
            return None
        deadline = [teardown.deadline for teardown in self if teardown.deadline is not None]
        return max(0.0, min(deadline) - time.monotonic()) * 1000 if deadline else None

    def kill_overdue(self) -> None:
        """Kill each init that has taken too long."""
        if self._jailed:
            return
        now = time.monotonic()
        for teardown in self:
            if teardown.deadline is not None and teardown.deadline <= now:
                os.kill(teardown.pid, signal.SIGKILL)
                teardown.deadline = None

    def wait(self) -> None:
        """Wait until a session has ended or is overdue. Other input waits meanwhile."""
        for fd, _ in self._poller.poll(self.timeout_ms()):
            if fd in self._by_pidfd:
                self.reap(fd)
        self.kill_overdue()

    def finish(self) -> None:
        """Wait until all sessions have ended."""
        while self._by_pidfd:
            self.wait()

    def forked(self) -> None:
        """In a fork of the zygote: close the descriptors; the sessions are the parent's."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)
