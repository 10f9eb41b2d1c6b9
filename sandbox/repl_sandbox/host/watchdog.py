"""`Watchdog`: limits on all processes of a session together, which no rlimit enforces."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ..types import KillReason
from . import proc

if TYPE_CHECKING:
    from ..session.core import Core
    from .fair_share import FairScheduler
    from .links import SessionLinks


# `SessionUsage`: the resources that a session uses, compared with its limits.

# The pause between two scans of a directory, as a multiple of the duration of a scan.
_REST = 9
# A mapping has at least a page; mappings are counted only where so many pages could have
# more than this part of the limit in them.
_PAGE = 4096
_NEGLIGIBLE = 8
# Measurements in a row that must agree if there are snapshots: a kernel under load takes its time
# to end one.
_SURE = 3


class SessionUsage:
    """The usage of the session of `core`; its template's `template_memory` bytes do not count."""

    def __init__(self, core: Core, template_memory: int) -> None:
        self.core = core
        self._template_memory = template_memory
        self._exact_due = 0.0  # on the monotonic clock
        self._folder_due = 0.0
        self._mappings, self._mappings_due = 0, 0.0
        self._is_full = False  # whether processes without namespaces were as many as allowed
        self._too_many_running = False  # whether there were more running processes than allowed
        self._suspicions = 0  # measurements in a row with too much memory

    def full(self, processes: list[int]) -> bool:
        """Note and return whether `processes`, all of the session, are as many as allowed."""
        # The processes are those of all branches of a session, and so are the limits.
        query = self.core.links.baseline.query
        limit = self.core.limits.processes + self._branches * (self.core.engine_processes + 1) - 1
        full: bool = query("threads", processes) > limit
        if full:
            self.core.note_process_limit()
        # In namespaces the kernel refuses more processes. Elsewhere it counts by user, who may have
        # processes besides the session's.
        self._is_full = full and bool(self.core.links.folder)
        self._too_many_running = self._is_full and query("running", processes) > limit
        return full

    @property
    def _branches(self) -> int:
        return self.core.links.family.branches

    def breach(self, processes: list[int]) -> KillReason | None:
        """Return the limit that `processes` exceed, after `full` was called with them."""
        limits, links, branches = self.core.limits, self.core.links, self._branches
        limit = branches * int(limits.memory)
        # First, because a flood of processes also uses much memory.
        if self._too_many_running:
            return "processes"
        exceeds = None
        limit -= self._of_mappings(processes, limit)
        if links.group is not None:
            allowed = limit + self._template_memory
            exceeds = group_exceeds(
                links, processes, allowed, branches * self.core.engine_processes
            )
        if exceeds is None:
            exceeds = self._exceeds(processes, limit + self.core.mapped_bytes)
        # The memory of a snapshot that is ending is in no process, but still in the cgroup.
        if exceeds is not None:
            self._suspicions = self._suspicions + 1 if exceeds else 0
        if self._suspicions >= (1 if self.core.engine_processes == 1 else _SURE):
            # A storm whose forks are refused: as many processes as allowed, of which few run.
            return "processes" if self._is_full else "memory"
        seconds = limits.cpu_seconds
        if seconds is not None and self._cpu_seconds(processes) > branches * seconds:
            return "cpu"
        return "workspace" if links.folder and self._is_workspace_full() else None

    def _of_mappings(self, processes: list[int], limit: int) -> int:
        """Bytes that the kernel keeps about mappings, except those of waiting snapshots.

        0 if they are few. No rlimit bounds them: a page of addresses that is never used has a
        mapping of its own where its neighbours have other permissions.
        """
        links = self.core.links
        query = links.baseline.query
        most = query("address_space", processes) // _PAGE * proc.MAPPING_SIZE
        if most <= limit // _NEGLIGIBLE:
            return 0
        start = time.monotonic()
        if start < self._mappings_due:
            return self._mappings
        snapshots = query(
            "snapshots", links.pid, processes, links.family.branches * self.core.engine_processes
        )
        counted = [pid for pid in processes if pid not in snapshots]
        self._mappings = query("mappings", counted, limit)
        end = time.monotonic()
        self._mappings_due = end + (end - start)  # half of the time at most
        return self._mappings

    def _cpu_seconds(self, processes: list[int]) -> float:
        seconds: float = self.core.links.baseline.query("cpu_seconds", processes)
        return seconds

    def _is_workspace_full(self) -> bool:
        """Return whether a directory that the kernel does not bound holds more than allowed."""
        start = time.monotonic()
        if start < self._folder_due:
            return False
        workspace, links = int(self.core.limits.workspace), self.core.links
        exceeds: bool = links.baseline.query("use", links.folder, workspace) > workspace
        end = time.monotonic()
        self._folder_due = end + _REST * (end - start)
        return exceeds

    def _exceeds(self, processes: list[int], limit: int) -> bool | None:
        """Return whether a session holds more than `limit` bytes beyond its template's.

        The memory of waiting snapshots alone does not count. None: it is too early for another
        measurement.
        """
        links = self.core.links
        query = links.baseline.query
        # init and the worker are forks of the template: both show its pages, which are shared.
        allowed = limit + 2 * self._template_memory
        if query("resident", processes) <= allowed:
            return False
        snapshots = query(
            "snapshots", links.pid, processes, links.family.branches * self.core.engine_processes
        )
        processes = [pid for pid in processes if pid not in snapshots]
        if query("resident", processes) <= allowed:
            return False
        # That counts a page once for each process that maps it, as after os.fork. The exact
        # measurement walks the page tables, 16 ms for each process's gigabyte, and may take half of
        # the time at most.
        start = time.monotonic()
        if start < self._exact_due:
            return None
        memory = query("proportional", processes) + query("shared_with_others", snapshots)
        exceeded: bool = memory - self._template_memory > limit
        end = time.monotonic()
        self._exact_due = end + (end - start)
        return exceeded


def group_exceeds(
    links: SessionLinks, processes: list[int], limit: int, engine_processes: int
) -> bool | None:
    """Return whether a cgroup's processes hold more than `limit`; None if it is unknown."""
    group, init = links.group, links.pid
    assert group is not None
    try:
        if group.version == 1:  # its total includes page tables, which version 1 does not report
            limit -= proc.page_tables(processes)
        if group.memory_used() <= limit:
            return False
        # Files of the session's tmpfs are charged to the cgroup as well. They change between the
        # two readings: the larger amount, before or after, is subtracted.
        files = proc.memory_in_files(init)
        memory = group.memory_used() - max(files, proc.memory_in_files(init))
        if memory <= limit:
            return False
        return (
            memory - proc.unshared_memory(proc.snapshots(init, processes, engine_processes)) > limit
        )
    except FileNotFoundError:
        return False  # the session has ended
    except OSError:
        return None


# `Watchdog`.
#
# Covers: the sums of memory and CPU time over a session's processes, measured 20 times a second
# while a cell runs, and now and then while none does. The kernel adds up the memory if the
# session has a cgroup; otherwise it is read from the processes. Does not cover: bursts between
# two measurements (the cgroup bounds them, else RLIMIT_DATA for each process) and the memory of
# the session's tmpfs mounts, which have sizes. `SessionUsage` compares with the limits.

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
        return any(other.running_since and other.links.pid == core.links.pid for other in others)

    def _measure(self, watched: SessionUsage) -> KillReason | None:
        links = watched.core.links
        processes: list[int] = links.baseline.query("descendants", links.pid)
        self._shares.observe(watched.core, processes, full=watched.full(processes))
        return watched.breach(processes)
