"""When a waiting copy is brought up to date, and when a fork takes its place.

What a process is beside its memory a renewal does not bring: mappings, limits, signal handlers, the
working directory. While these are as they were when its copy was made, that copy is renewed; else,
and where the kernel cannot say what was written, the next copy is another fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from . import signals
from .apart import Apart
from .delta import Delta, Exchange, Kept
from .glance import Glance, Own, lasting
from .quiet_fork import QuietFork, Rest
from .tracking import Tracking
from .written import TooMuchError

# So many copies at most are forks again after one that could not be renewed, of twice as many each
# time: a session whose mappings change in each cell, and so its copies, need not be tracked.
_MOST_SKIPPED = 32
# Where a file without a name counts as one of the session's.
_PLACE = "/dev/shm"
# So many copies are forks before any is tracked: most sessions end by then, and would have had
# their memory in the file for nothing.
_FIRST_FORKS = 3
# A copy that was renewed less often was not worth it.
_FEW_TIMES = 2

_open, _read, _close, _fstat, _getcwd = os.open, os.read, os.close, os.fstat, os.getcwd


class Renewal:
    """Of the copies of one worker."""

    def __init__(self, fork: QuietFork, pages: Tracking | None, own: Own) -> None:
        """`pages`: what tracks those of the worker, None where that is of no use."""
        self._fork, self._pages = fork, Tracking(0) if pages is None else pages
        self._own, self._signals = own, signals.prepare()
        self._delta: Delta | None = None
        self._glance: Glance | None = None
        self._kept: dict[int, Kept] = {}  # by the process ids of their copies
        self._surroundings = b""
        self._skipped, self._skip = 0, _FIRST_FORKS
        self.rested = False
        self._forks: Callable[..., int] = fork

    def copy(self, instead: int, closed: int, exchange: Exchange, rest: Rest | None = None) -> int:
        """The process id of a copy of the state now: `instead`, which is of no use any more, or
        another. 0 in the copy, when it is woken. Else as QuietFork.

        `exchange` is called with what makes `instead` that copy, by one word: before, it is what it
        was. `rest`: as of QuietFork; `rested` says whether it was done, which it is after a fork
        that is no more than that.
        """
        self.rested = False
        kept = self._kept.pop(instead, None)
        closed = min((closed, *self._pages.descriptors))
        try:
            if self._delta is not None and _surroundings() == self._surroundings:
                if kept is not None:
                    self._delta.check(kept)
                pid = self._renewed(self._delta, kept, closed, exchange)
                if pid == instead and self._glance is not None:
                    self._glance.remember()
                return pid
        except (OSError, TooMuchError):
            pass
        self._give_up()
        # Who may rest is asked for little, and would have the file's memory for it.
        if not self._pages.begun or self._skipped < self._skip or rest is not None:
            self._skipped += 1
            pid = self._forks(closed, rest=rest)
            self.rested = rest is not None
            return pid
        return self._begin(closed)

    def again(self, instead: int, exchange: Exchange) -> int:
        """As `copy`, if that needs no close look: `instead`, 0 in the copy, or -1 where it does.

        In the copy all signals are blocked then, and `blocked` are those that its code has blocked.
        """
        delta, glance, kept = self._delta, self._glance, self._kept.get(instead)
        if delta is None or glance is None or kept is None:
            return -1
        others = [each for each in self._kept.values() if each is not kept]
        woken = False
        try:
            self._signals.hold()
            if glance.is_same(instead):
                woken = not delta.renew(kept, others, exchange)
                return 0 if woken else instead
        except (OSError, TooMuchError):
            pass  # as is found once more
        finally:
            if not woken:
                self._signals.let_go()
        return -1

    @property
    def blocked(self) -> set[int]:
        """Signals that code had blocked when `again` was called last."""
        return self._signals.before

    def rehearse(self, closed: int, exchange: Exchange, rest: Rest) -> None:
        """Run what `copy` runs for a fork, but for that."""
        fork, self._forks = self._forks, self._fork.prepare
        try:
            self.copy(0, closed, exchange, rest)
        finally:
            self._forks, self._skipped, self.rested = fork, 0, False

    def _begin(self, closed: int) -> int:
        """Fork the first copy of those that can be renewed."""
        try:
            delta = self._new_delta()
        except OSError:
            self._skipped, self._skip = 0, min(2 * self._skip, _MOST_SKIPPED)
            return self._fork(closed)
        self._delta, self._surroundings = delta, b""
        # With what is mapped for this, and before the fork: what looks writes to pages which else
        # would be kept for the copy, now and each time.
        with suppress(OSError):  # then it is not renewed
            if self._glance is not None:
                self._glance.remember()
            self._surroundings = _surroundings()
        try:
            return self._made(delta, closed)
        except OSError:  # something was mapped meanwhile
            self._give_up()
            return self._fork(closed)

    def _new_delta(self) -> Delta:
        file = Apart(os.open(_PLACE, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
        try:
            # Before all memory is tracked, of which its own is some.
            self._glance = Glance(self._own, (*self._pages.descriptors, file.fd))
            return Delta(self._fork, self._pages, file)
        except OSError:
            file.close()
            self._give_up()
            raise

    def _made(self, delta: Delta, closed: int) -> int:
        pid = delta.fork(closed, self._kept.values())
        with suppress(OSError):  # it has died
            if pid and (kept := delta.kept(pid)) is not None:
                self._kept[pid] = kept
        return pid

    def _renewed(self, delta: Delta, kept: Kept | None, closed: int, exchange: Exchange) -> int:
        """As `copy`; TooMuchError where what is to be kept is too much as a rule."""
        if kept is None:
            return self._made(delta, closed)
        try:
            if not delta.renew(kept, self._kept.values(), exchange):
                return 0
        except TooMuchError:
            if kept.times < _FEW_TIMES:
                raise
            return self._made(delta, closed)
        self._kept[kept.copy] = kept
        self._skip = 1
        return kept.copy

    def _give_up(self) -> None:
        """Renew none of those that there are."""
        if self._glance is not None:
            self._glance.close()
            self._glance = None
        if self._delta is not None:
            self._delta.close()
            self._delta = None
            self._kept.clear()
            self._skipped, self._skip = 0, min(2 * self._skip, _MOST_SKIPPED)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those that are open for it."""
        pages = self._pages.descriptors
        if self._delta is None or self._glance is None:
            return pages
        return (self._delta.descriptor, *self._glance.descriptors, *pages)

    @property
    def mapped(self) -> tuple[int, ...]:
        """Where memory begins that is shared for it."""
        return () if self._delta is None else (self._delta.mapped,)

    def take_over(self) -> None:
        """In a copy that was woken: its own copies are forks.

        Raises:
            OSError: it has not read all that was written for it.
        """
        if self._delta is not None:
            self._delta.wake()
        self.end()

    def end(self) -> None:
        """Let go of all; every copy from now on is a fork."""
        self._give_up()
        self._pages.end()


def _surroundings() -> bytes:
    """What a process is beside the pages that it has written, as far as code may change it.

    Raises:
        OSError: it cannot be told: a standard stream is closed, or the working directory gone.
    """
    status = _text("/proc/self/status")
    parts = [status[start:end] for start, end in lasting(status)]
    streams = (_fstat(fd) for fd in _STREAMS)
    files = b"".join(b"%d:%d " % (status.st_dev, status.st_ino) for status in streams)
    return b"".join((*parts, files, _text("/proc/self/limits"), os.fsencode(_getcwd())))


_STREAMS = (0, 1, 2)


def _text(path: str) -> bytes:
    fd = _open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(fd, 1 << 16)
    finally:
        _close(fd)
