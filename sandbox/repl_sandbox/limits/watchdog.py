"""`Watchdog`: limits on all processes of a session together, which no rlimit enforces.

Covers: the sums of memory and CPU time over a session's processes, measured 20 times a second while
a cell runs, and now and then while none does. The kernel adds up the memory if the session has a
cgroup; otherwise it is read from the processes. Does not cover: bursts between two measurements
(the cgroup bounds them, else RLIMIT_DATA for each process) and the memory of the session's tmpfs
mounts, which have sizes. `accounting.py` compares with the limits.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ..types import KillReason
from .accounting import SessionUsage

if TYPE_CHECKING:
    from ..fair_share.fair_scheduler import FairScheduler
    from ..session.core import Core

# Memory can grow by some 100 MB between two measurements.
_PERIOD = 0.05
# The parts of a round, with pauses between: in one part a round would hold up other threads for
# milliseconds, by its use of the processor and of the interpreter's lock. More parts make a round
# last longer if each has to wait for both, and fork bombs are found later.
_PARTS = 4
# The number of sessions without a running cell that are measured, in turn, and the periods between
# two such measurements.
_IDLE_MEASURED = 16
_IDLE_PERIODS = 10
# Sessions that wait for their turn: little of them runs.
_WAITING_PERIODS = 10
# Periods without any session after which the thread sleeps. Waking it costs the caller
# that opens a session 0.1 ms, so it is not done for each.
_IDLE_ROUNDS = 100


class Watchdog:
    """One thread for all sessions of a sandbox; it starts with the first session.

    `memory`: bytes of the template, which count for no session, even where a session has written to
    them and so has copies of the pages. `shares`: the scheduler, which receives the processes that
    the watchdog finds.
    """

    def __init__(self, memory: int, shares: FairScheduler) -> None:
        self._shares = shares
        self._template_memory = memory
        self._watched: dict[int, SessionUsage] = {}
        self._lock = threading.Lock()
        self._has_work = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = 0
        self._round = 0
        self._alone = 0

    def add(self, core: Core) -> None:
        """Watch a session."""
        with self._lock:
            self._watched[id(core)] = SessionUsage(core, self._template_memory)
            self._shares.join(core)
            if self._thread is None:
                name = "repl-watchdog"
                self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
                self._thread.start()
            if not self._has_work.is_set():
                self._has_work.set()

    def remove(self, core: Core) -> None:
        """Stop watching a session, which is about to end."""
        with self._lock:
            self._watched.pop(id(core), None)
        self._shares.leave(core)

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        with self._lock:
            self._closed.set()
            self._has_work.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        pause = _PERIOD
        while True:
            self._has_work.wait()
            if self._closed.wait(pause):
                return
            due = self._due()
            together = -(-len(due) // _PARTS)
            pause = _PERIOD * together / len(due) if due else _PERIOD
            for number, watched in enumerate(due):
                if number and not number % together and self._closed.wait(pause):
                    return
                self._enforce(watched)
            self._shares.schedule_round(self._round)

    def _enforce(self, watched: SessionUsage) -> None:
        core = watched.core
        worker_number = core.worker_number
        try:
            reason = self._measure(watched) if id(core) in self._watched else None
        except OSError:
            # The host may be out of descriptors for a moment. The thread must not end by that,
            # because no limit would be checked again; the next round is soon.
            return
        if reason is not None and not self._is_caused_by_branch(core):
            core.breach(reason, worker_number)

    def _due(self) -> list[SessionUsage]:
        self._round += 1
        with self._lock:
            sessions = list(self._watched.values())
            self._alone = 0 if sessions else self._alone + 1
            if self._alone > _IDLE_ROUNDS and not self._closed.is_set():
                self._has_work.clear()
        # A cell younger than a period is not measured: most steps take microseconds.
        recent = time.monotonic() - _PERIOD
        due = [watched for watched in sessions if 0 < watched.core.running_since < recent]
        if self._round % _WAITING_PERIODS:
            due = [watched for watched in due if not self._shares.is_stopped(watched.core)]
        if self._round % _IDLE_PERIODS:
            return due
        idle = [watched for watched in sessions if not watched.core.running_since]
        due += [watched for watched in idle if self._shares.is_busy(watched.core)]
        for _ in range(min(_IDLE_MEASURED, len(idle))):
            self._turn += 1
            due.append(idle[self._turn % len(idle)])
        return due

    def _is_caused_by_branch(self, core: Core) -> bool:
        """Return whether a branch of a session does nothing while another one runs.

        The measurements are of all branches. The one that runs is measured as well, and is to end.
        """
        if core.running_since:
            return False
        with self._lock:
            others = [watched.core for watched in self._watched.values()]
        return any(each.running_since and each.links.pid == core.links.pid for each in others)

    def _measure(self, watched: SessionUsage) -> KillReason | None:
        links = watched.core.links
        processes: list[int] = links.baseline.query("descendants", links.pid)
        self._shares.observe(watched.core, processes, full=watched.full(processes))
        return watched.breach(processes)
