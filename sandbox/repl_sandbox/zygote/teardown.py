"""Sessions that were told to end, until all of them is gone.

To end a session takes as long as to begin one, so nobody waits for it: a descriptor of its init's
says when it has ended, beside all else that the zygote hears.
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
# Each has a descriptor, of which a process has 1,024 by default.
_MOST = 128


@dataclass(slots=True)
class SessionTeardown:
    """One session. `asked` are the requests that are answered when it has ended."""

    session: int
    pid: int
    pidfd: int
    until: float | None  # by time.monotonic: then its init has taken too long to end the rest
    asked: list[int] = field(default_factory=list)


class TeardownQueue:
    """Those of one zygote. `poller` is told of their descriptors, and has that of the `host`.

    Where one has to end before the next is told to, the host is not heard meanwhile.
    `jailed`: with an init the kernel ends all of its session; in other tiers the init does that.
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
        """Whether one has to end before the next is told to."""
        return len(self._by_pidfd) >= _MOST

    def of(self, session: int) -> SessionTeardown | None:
        """The ending of `session`, if it was told to."""
        return next((each for each in self if each.session == session), None)

    def begin(self, session: int, pid: int) -> SessionTeardown:
        """Tell the init `pid` of `session` to end."""
        # It may have ended by itself; until it is waited for, the pid is nobody else's.
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL if self._jailed else signal.SIGTERM)
        ending = SessionTeardown(
            session, pid, pidfd, None if self._jailed else time.monotonic() + _TIMEOUT
        )
        self._by_pidfd[pidfd] = ending
        self._poller.register(pidfd, select.POLLIN)
        if self.full:
            self._hear_host(0)
        return ending

    def bury(self, pidfd: int) -> SessionTeardown:
        """Take away the one whose descriptor says that it has ended."""
        if self.full:
            self._hear_host(select.POLLIN)
        ending = self._by_pidfd.pop(pidfd)
        os.waitpid(ending.pid, 0)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        return ending

    def _hear_host(self, events: int) -> None:
        if self._host is not None:
            self._poller.modify(self._host, events)

    def forget_host(self) -> None:
        """The host is gone: it has no more to say."""
        if self._host is not None:
            self._poller.unregister(self._host)
            self._host = None

    def patience(self) -> float | None:
        """Milliseconds until `kill_the_late` has something to do; None if it never will."""
        if self._jailed:
            return None
        until = [ending.until for ending in self if ending.until is not None]
        return max(0.0, min(until) - time.monotonic()) * 1000 if until else None

    def kill_the_late(self) -> None:
        """Kill each init that has taken too long."""
        if self._jailed:
            return
        now = time.monotonic()
        for ending in self:
            if ending.until is not None and ending.until <= now:
                os.kill(ending.pid, signal.SIGKILL)
                ending.until = None

    def wait(self) -> None:
        """Wait until one has ended or is late. Nothing else is heard of meanwhile."""
        for fd, _ in self._poller.poll(self.patience()):
            if fd in self._by_pidfd:
                self.bury(fd)
        self.kill_the_late()

    def finish(self) -> None:
        """Wait for all of them."""
        while self._by_pidfd:
            self.wait()

    def forked(self) -> None:
        """In a fork of the zygote: let go of the descriptors; the sessions are its parent's."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)
