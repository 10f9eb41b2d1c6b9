"""Limits that no single process can be held to: what all processes of a session use together.

Covers: the sum of memory and of CPU time over a session's processes, looked at 20 times a second
while a cell runs and now and then while none does. The kernel adds the memory up where the session
has a group (cgroups); elsewhere it is read from the processes. Does not cover: bursts between two
looks (a group's own limit bounds them, else RLIMIT_DATA for each process) and the memory of the
session's tmpfs, which have sizes. Without a group: shared anonymous memory that is kept without
being in view (unmapped in part, or given to madvise).
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from .crowds import turn
from .jail import folders
from .jail.mounts import PRIVATE
from .jail.processes import cpu_seconds, descendants
from .session.core import Core
from .types import KillReason
from .weights import Weights
from .worker.copies import WAITS
from .yielding import Yielding
from .zygote.links import Family, Links

# Memory can grow by some 100 MB between two looks on the machines this was measured on.
_PERIOD = 0.05
# Sessions without a running cell, looked at in turn: so many, once in so many periods.
_IDLE_A_LOOK = 16
_IDLE_PERIODS = 10
# Sessions that wait for their turn: little of them runs.
_WAITING_PERIODS = 10
# Seconds for which somebody who began a cell is counted among those who work.
_OTHERS = 1.0
# Periods without any session after which the thread waits to be woken. Waking it costs the caller
# that opens a session a tenth of a millisecond, so it is not done for each.
_PATIENCE = 100
# How many times as long as it took, until a directory is looked through again.
_REST = 9
# Looks that must agree where copies wait: a kernel under load takes its time to end one.
_SURE = 3
# Looks at a directory that was closed while it was looked at.
_LOOKS = 3

# proc(5): private pages, pages of shared memory, page tables. Mapped files count for nobody.
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmPTE:")
# The same, where a page that n processes map counts 1/n for each.
_PROPORTIONAL = (b"Pss_Anon:", b"Pss_Shmem:")
_PAGE_TABLES = (b"VmPTE:",)
_PRIVATE = (b"RssAnon:",)
# What nobody else maps.
_OWN = (b"Private_Clean:", b"Private_Dirty:")
# proc(5), SigBlk: the sign of a copy that waits.
_WAITS = 1 << (WAITS - 1)
_KILL = 1 << (signal.SIGKILL - 1)
# linux/sched.h: PF_EXITING, PF_SIGNALED; proc_pid_stat(5) has them in `flags`.
_PF_ENDING = 0x4 | 0x400


@dataclass(slots=True)
class _Watched:
    core: Core
    cell: int  # the last that was begun before the last look
    begun: int = 0  # the last that was begun before the last turn
    exact_due: float = 0.0  # on the monotonic clock
    folder_due: float = 0.0
    suspicions: int = 0  # looks in a row that found too much memory


class Watchdog:
    """One thread for all sessions of a sandbox; it starts with the first session.

    `template` is the process that sessions are forked from; what it holds (`template_memory`, in
    bytes) is not theirs, also where they have written to it and so have copies. `yielding`: have
    sessions that burn CPU time give way.
    """

    def __init__(self, template: int, *, yielding: bool = False) -> None:
        self._weights = Weights(template) if yielding else None
        # Branches of a session are one with it: they have one init, and one group.
        self._yieldings: weakref.WeakKeyDictionary[Family, Yielding] = weakref.WeakKeyDictionary()
        self.template_memory = _kilobytes(f"/proc/{template}/status", _PRIVATE) << 10
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._turn = 0
        self._round = 0
        self._others_until = 0.0  # on the monotonic clock
        self._alone = 0

    def add(self, core: Core) -> None:
        """Watch a session."""
        with self._lock:
            self._watched[id(core)] = _Watched(core, core.cell)
            if self._weights is not None:
                new = Yielding(self._weights, time.monotonic())
                self._yieldings.setdefault(core.links.family, new).join(core.links)
            if self._thread is None:
                name = "repl-watchdog"
                self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
                self._thread.start()
            if not self._wanted.is_set():
                self._wanted.set()

    def remove(self, core: Core) -> None:
        """Stop watching a session, which is about to end."""
        with self._lock:
            watched = self._watched.pop(id(core), None)
            yielding = self._yieldings.get(core.links.family)
        if watched is not None and yielding is not None:
            yielding.leave(core.links)

    def close(self) -> None:
        """End the thread, and wait for its end."""
        with self._lock:
            self._closed.set()
            self._wanted.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        while True:
            self._wanted.wait()
            if self._closed.wait(_PERIOD):
                return
            for watched in self._due():
                generation = watched.core.generation
                try:
                    reason = self._look(watched)
                except OSError:
                    # The host may be out of descriptors for a moment; this thread must not end
                    # by that, for no limit would be looked at again. The next look is soon.
                    continue
                if reason is not None:
                    watched.core.breach(reason, generation)
            self._take_turns(time.monotonic())

    def _take_turns(self, now: float) -> None:
        """Let those go on whose turn it is, of sessions in which many processes want to run."""
        with self._lock:
            everybody = list(self._watched.values())
            crowds = [each for each in self._yieldings.values() if each.crowded]
        if not crowds:
            return
        hear: dict[Yielding, set[int]] = {each: set() for each in crowds}
        for watched in everybody:
            core, yielding = watched.core, self._yieldings.get(watched.core.links.family)
            begun, watched.begun = core.cell != watched.begun, core.cell
            if yielding in hear:
                if core.interrupting:
                    hear[yielding].add(core.links.worker_pid)
            elif begun or core.running_since:
                self._others_until = now + _OTHERS
        runs = turn(self._round, len(crowds), others=now < self._others_until)
        for number, each in enumerate(crowds):
            if number not in runs:
                each.wait(hear[each])
        for number in runs:
            crowds[number].go_on()

    def _due(self) -> list[_Watched]:
        self._round += 1
        with self._lock:
            everybody = list(self._watched.values())
            self._alone = 0 if everybody else self._alone + 1
            if self._alone > _PATIENCE and not self._closed.is_set():
                self._wanted.clear()
        # A cell younger than a period is left alone: most steps take microseconds.
        young = time.monotonic() - _PERIOD
        due = [watched for watched in everybody if 0 < watched.core.running_since < young]
        if self._round % _WAITING_PERIODS:
            due = [watched for watched in due if not self._waits(watched)]
        if self._round % _IDLE_PERIODS:
            return due
        idle = [watched for watched in everybody if not watched.core.running_since]
        due += [watched for watched in idle if self._is_weighed(watched)]
        for _ in range(min(_IDLE_A_LOOK, len(idle))):
            self._turn += 1
            due.append(idle[self._turn % len(idle)])
        return due

    def _waits(self, watched: _Watched) -> bool:
        yielding = self._yieldings.get(watched.core.links.family)
        return yielding is not None and yielding.waits

    def _is_weighed(self, watched: _Watched) -> bool:
        yielding = self._yieldings.get(watched.core.links.family)
        return yielding is not None and yielding.busy

    def _look(self, watched: _Watched) -> KillReason | None:
        links = watched.core.links
        processes = list(descendants(links.pid))
        yielding = self._yieldings.get(links.family)
        if yielding is not None:
            cell = watched.core.cell
            begun, watched.cell = max(0, cell - watched.cell), cell
            if links.group is not None:
                with suppress(OSError):  # the session has ended, or somebody removed its group
                    links.group.note(watched.core.limits.processes + watched.core.ours + 1)
            yielding.look(links, processes, begun, time.monotonic())
        return self._breach(watched, processes)

    def _breach(self, watched: _Watched, processes: list[int]) -> KillReason | None:
        limits, links = watched.core.limits, watched.core.links
        # What is seen is of all branches of a session, and so are the limits.
        lines = links.family.lines
        limit = lines * int(limits.memory)
        # First, for a flood of processes also holds much memory. Only without namespaces: there the
        # kernel counts by user, who may have others elsewhere.
        most = limits.processes + lines * (watched.core.ours + 1) - 1
        if links.folder and sum(map(_threads, processes)) > most:
            alive = [pid for pid in processes if (seen := _state(pid)) and not seen.ending]
            if sum(map(_threads, alive)) > most:
                return "processes"
        exceeds = None
        if links.group is not None:
            most = limit + self.template_memory
            exceeds = _exceeds(links, processes, most, lines * watched.core.ours)
        if exceeds is None:
            exceeds = self._exceeds(watched, processes, limit + watched.core.lent)
        # The memory of a copy that is just being ended is in no process and yet in the group.
        if exceeds is not None:
            watched.suspicions = watched.suspicions + 1 if exceeds else 0
        if watched.suspicions >= (1 if watched.core.ours == 1 else _SURE):
            return "memory"
        if limits.cpu_seconds is not None and cpu_seconds(processes) > lines * limits.cpu_seconds:
            return "cpu"
        return "workspace" if links.folder and self._overfull(watched) else None

    def _overfull(self, watched: _Watched) -> bool:
        """Whether a directory that the kernel does not bound holds more than it may."""
        start = time.monotonic()
        if start < watched.folder_due:
            return False
        workspace = int(watched.core.limits.workspace)
        overfull = _use(watched.core.links.folder, workspace) > workspace
        end = time.monotonic()
        watched.folder_due = end + _REST * (end - start)
        return overfull

    def _exceeds(self, watched: _Watched, processes: list[int], limit: int) -> bool | None:
        """Whether a session holds more than `limit` bytes beyond its template's.

        What only its waiting copies hold does not count. None: it is too early for another look.
        """
        links = watched.core.links
        # init and the worker are forks of the template: its pages show in both, and are shared.
        most = limit + 2 * self.template_memory
        if _resident(processes) <= most:
            return False
        copies = _copies(links.pid, processes, links.family.lines * watched.core.ours)
        processes = [pid for pid in processes if pid not in copies]
        if _resident(processes) <= most:
            return False
        # That counts a page once for each process that maps it, as after os.fork. What counts it
        # once walks the page tables, 16 ms for each process's gigabyte: half of the time at most.
        start = time.monotonic()
        if start < watched.exact_due:
            return None
        held = _proportional(processes) + _also_held(copies)
        exceeded = held - self.template_memory > limit
        end = time.monotonic()
        watched.exact_due = end + (end - start)
        return exceeded


def _exceeds(links: Links, processes: list[int], limit: int, ours: int) -> bool | None:
    """Whether a group's processes hold more than `limit`; None if it cannot be told."""
    group, init = links.group, links.pid
    assert group is not None
    try:
        if group.version == 1:  # which does not say how much of its memory page tables are
            limit -= sum(_kilobytes(f"/proc/{pid}/status", _PAGE_TABLES) for pid in processes) << 10
        if group.held() <= limit:
            return False
        # Files of the session's tmpfs are charged to the group as well. They come and go between
        # the looks at each: what was there before or after is given to them.
        files = _in_files(init)
        held = group.held() - max(files, _in_files(init))
        if held <= limit:
            return False
        copies = _copies(init, processes, ours)
        theirs = sum(_kilobytes(f"/proc/{pid}/smaps_rollup", _OWN) for pid in copies) << 10
        return held - theirs > limit
    except FileNotFoundError:
        return False  # the session has ended
    except OSError:
        return None


def _copies(init: int, processes: Iterable[int], most: int) -> set[int]:
    """The waiting copies of a worker among `processes`, at most so many, and all that is ending.

    Copies are children of its init, process groups of their own, and have one signal blocked as a
    sign. Code that makes itself look so is held by what all processes of its session may hold with
    such copies. What is ending runs no code any more; on a machine under load it has its memory for
    a while yet, as copies have that were replaced.
    """
    seen = {pid: _state(pid) for pid in processes}
    ending = {pid for pid, state in seen.items() if state is not None and state.ending}
    waiting = [
        pid
        for pid, state in seen.items()
        if pid not in ending and state is not None and state.waits(pid, init)
    ]
    return ending | set(waiting[:most])


@dataclass(frozen=True, slots=True)
class _State:
    """What /proc says of a process: its parent, its group, signals, whether it will ever run."""

    parent: int
    group: int
    blocked: int
    ending: bool

    def waits(self, pid: int, init: int) -> bool:
        """Whether it looks like a copy of the worker of this init."""
        return self.parent == init and self.group == pid and bool(self.blocked & _WAITS)


def _state(pid: int) -> _State | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b") ")[2].split()
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            status = file.read()
    except OSError:
        return None

    def signals(name: bytes) -> int:
        return int(status.partition(name)[2].split(None, 1)[0], 16)

    pending = signals(b"SigPnd:") | signals(b"ShdPnd:")
    ending = bool(pending & _KILL) or bool(int(fields[6]) & _PF_ENDING)
    return _State(int(fields[1]), int(fields[2]), signals(b"SigBlk:"), ending)


def _also_held(copies: Iterable[int]) -> int:
    """Bytes of pages that `copies` share with others: the part that counts there for them."""
    total = 0
    for pid in copies:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
            total += shares - _kilobytes(f"/proc/{pid}/smaps_rollup", _OWN)
        except PermissionError:
            continue  # then the shares of the others are not known either, and are counted whole
    return max(0, total) << 10


def _in_files(init: int) -> int:
    """Bytes in the private places of the session whose init is `init`."""
    total = 0
    for place in PRIVATE:
        seen = os.statvfs(f"/proc/{init}/root{place}")
        total += (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    return total


def _resident(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, each looked at alone."""
    return sum(_kilobytes(f"/proc/{pid}/status", _RESIDENT) for pid in processes) << 10


def _proportional(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, a page that several map shared out among them."""
    total = 0
    for pid in processes:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
        except PermissionError:
            # Too much is better than nothing: this side of a limit is the safe one.
            total += _resident((pid,))
        else:
            total += (shares + _kilobytes(f"/proc/{pid}/status", _PAGE_TABLES)) << 10
    return total


def _kilobytes(path: str, names: tuple[bytes, ...]) -> int:
    """The sum of the rows `names` of a file that says "NAME: 123 kB"; 0 for a process that is gone.

    Raises:
        PermissionError: this process may not look.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            rows = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(row.split()[1]) for row in rows if row.startswith(names))


def _use(folder: str, most: int) -> int:
    for _ in range(_LOOKS):
        try:
            return folders.use(folder, most)
        except PermissionError:
            continue
        except OSError:
            return 0  # the session has ended
    return most + 1  # what code closes to this process again and again, it hides


def _threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0
