"""`ForkLimiter`: the process that limits the processes of sessions where the kernel cannot.

RLIMIT_NPROC counts all processes of a user, so it limits a session only if the session has a user
of its own, and cgroups need privileges. Without namespaces each fork of a session therefore waits
for this process, which counts the descendants of the session's init and lets the fork succeed or
fail. Requests for descriptors (`session_door`) wait likewise. One limiter serves all sessions of a
sandbox. It is no ancestor of them: whatever a session does, the zygote and init are not involved.

A fork beyond the limit waits for a process to end, and a session that has forked a lot lately waits
for each further fork. So code that forks in a loop sleeps, and other sessions have the processors.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections import deque
from errno import EIO
from typing import Final, NamedTuple, NoReturn

from ..jail import fork_notifications, processes
from ..jail.steps import ForkLimit
from ..native.forks import fork
from .session_door import Request, SessionDoor

# Forks that a session may make at once, and further ones each second: a program that starts others
# in a loop starts fewer, because each start takes a millisecond or more.
_AT_ONCE: Final = 128
_PER_SECOND: Final = 1000
# Seconds until a fork beyond the limit fails: by then the watchdog has seen the excess and killed
# the worker, or another process has ended.
_REFUSED_AFTER: Final = 0.5
# Seconds from the answer to a fork until its child can be counted, on a busy machine.
_UNDER_WAY: Final = 0.02
# The inverse share of this process's time that counting may take: a tenth.
_REST: Final = 9


class ForkLimiter:
    """Serves until no process is left that could introduce a session on `introductions`."""

    def __init__(self, introductions: socket.socket) -> None:
        self._introductions = introductions
        self._poller = select.poll()
        self._poller.register(introductions, select.POLLIN)
        self._sessions: dict[int, _Session] = {}  # by listener
        self._waiting: set[_Session] = set()  # those with unanswered forks

    def serve(self) -> NoReturn:
        """Answer forks."""
        while True:
            for fd, events in self._poller.poll(self._answer_forks()):
                if fd == self._introductions.fileno():
                    self._add_session()
                elif events & select.POLLIN:
                    self._sessions[fd].read_notice()
                    self._waiting.add(self._sessions[fd])
                else:
                    self._remove_session(fd)

    def _answer_forks(self) -> float | None:
        """Answer the forks that can be answered; return milliseconds until the next, None if none
        waits.
        """
        now = time.monotonic()
        due = {
            session: due_at for session in self._waiting if (due_at := session.answer_forks(now))
        }
        self._waiting = {*due}
        return max(0.0, min(due.values()) - time.monotonic()) * 1000 if due else None

    def _add_session(self) -> None:
        introduced = fork_notifications.receive(self._introductions)
        if introduced is None:
            os._exit(0)
        if introduced.listener < 0:
            return  # no descriptors are left: the session cannot fork
        self._sessions[introduced.listener] = _Session(introduced)
        self._poller.register(introduced.listener, select.POLLIN)

    def _remove_session(self, listener: int) -> None:
        """Remove a session without processes under the filter."""
        self._waiting.discard(self._sessions[listener])
        self._poller.unregister(listener)
        os.close(listener)
        self._sessions.pop(listener).door.close()


class _Session:
    """One worker, and everything that was ever forked from it."""

    def __init__(self, introduced: fork_notifications.Introduction) -> None:
        self._init, self._max_processes = introduced.init, introduced.max_processes
        self._listener = introduced.listener
        self.door = SessionDoor(introduced.init, introduced.uid)
        self._counted = self._max_processes  # nothing is known yet
        self._count_due = 0.0  # on the monotonic clock, as all times here
        # times of admitted forks whose children may be uncounted
        self._admitted: deque[float] = deque()
        # Waiting calls, and since when.
        self._waiting: deque[tuple[fork_notifications.Notice, float]] = deque()
        self._answers, self._answers_of = float(_AT_ONCE), time.monotonic()

    def read_notice(self) -> None:
        """Register a fork or a request that waits."""
        waiting = fork_notifications.read_notice(self._listener)
        if waiting is not None:
            self._waiting.append((waiting, time.monotonic()))

    def answer_forks(self, now: float) -> float | None:
        """Answer the calls that are due; return when to come back, if any is left."""
        self._answers += (now - self._answers_of) * _PER_SECOND
        self._answers, self._answers_of = min(self._answers, float(_AT_ONCE)), now
        while self._waiting:
            if self._answers < 1:
                return now + (1 - self._answers) / _PER_SECOND
            waiting, since = self._waiting[0]
            if waiting.request:
                self._answer_request(waiting)
            elif (admitted := self._admits(now, since)) is not None:
                fork_notifications.answer(self._listener, waiting.id, admitted=admitted)
            else:
                return self._count_due
            self._waiting.popleft()
            self._answers -= 1
        return None

    def _answer_request(self, waiting: fork_notifications.Notice) -> None:
        kind, number, first, second, flags = waiting.request
        try:
            fd = self.door.answer(Request(kind, number, first, second))
        except OSError as error:
            fork_notifications.refuse(self._listener, waiting.id, error.errno or EIO)
            return
        try:
            inherited = not flags & os.O_CLOEXEC
            fork_notifications.give(self._listener, waiting.id, fd, inherited=inherited)
        finally:
            os.close(fd)

    def _admits(self, now: float, since: float) -> bool | None:
        """Return whether the limit admits one more; None: perhaps at the next count."""
        if self._counted + len(self._admitted) >= self._max_processes and now >= self._count_due:
            self._count()
        if self._counted + len(self._admitted) < self._max_processes:
            self._admitted.append(now)
            return True
        return False if now >= since + _REFUSED_AFTER else None

    def _count(self) -> None:
        start = time.monotonic()
        self._counted = processes.threads(processes.descendants(self._init))
        while self._admitted and self._admitted[0] < start - _UNDER_WAY:
            self._admitted.popleft()
        end = time.monotonic()
        self._count_due = end + max(_UNDER_WAY / 4, _REST * (end - start))


class LimiterLink(NamedTuple):
    """The zygote's end of the fork limiter."""

    pid: int
    introductions: socket.socket
    filter: bytes

    def of(self, max_processes: int) -> ForkLimit:
        """The limiter for sessions with at most `max_processes`."""
        return ForkLimit(self.introductions, self.filter, max_processes)


def start(host: socket.socket) -> LimiterLink | None:
    """Fork a limiter from this process, the zygote of `host`; None where forks cannot wait for
    it.
    """
    try:
        filter_ = fork_notifications.program()
    except OSError:
        return None
    zygote_end, limiter_end = socket.socketpair()
    pid = fork()
    if pid == 0:
        try:
            processes.die_with_parent()
            os.setsid()
            zygote_end.close()
            host.close()
            _, max_processes = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_processes, max_processes))
            if not os.getuid():
                os.setgroups(())  # it takes users of sessions to open their files
            ForkLimiter(limiter_end).serve()
        finally:
            os._exit(1)
    limiter_end.close()
    return LimiterLink(pid, zygote_end, filter_)
