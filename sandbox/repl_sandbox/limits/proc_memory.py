"""The memory, threads and files of a session's processes, from `/proc`.

Mapped files do not count. Without a cgroup, shared anonymous memory that is kept but not mapped
(unmapped in part, or given to madvise) is not seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from ..jail import session_directory
from ..jail.mounts import PRIVATE
from ..protocol.snapshot_signals import SNAPSHOT_SIGNAL

# Scans of a directory that code made unreadable during a scan.
_MAX_SCANS = 3

# proc(5): private pages, pages of shared memory, page tables.
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmPTE:")
# The same, where a page that n processes map counts 1/n for each.
_PROPORTIONAL = (b"Pss_Anon:", b"Pss_Shmem:")
_PAGE_TABLES = (b"VmPTE:",)
_PRIVATE = (b"RssAnon:",)
# With the pages of files: for a kernel that does not distinguish them.
_WHOLE = (b"VmRSS:",)
# Pages that no other process maps.
_OWN = (b"Private_Clean:", b"Private_Dirty:")
# proc(5), SigBlk: the mark of a waiting snapshot.
_WAITS = 1 << (SNAPSHOT_SIGNAL - 1)
_KILL = 1 << (signal.SIGKILL - 1)
# linux/sched.h: PF_EXITING, PF_SIGNALED; proc_pid_stat(5) has them in `flags`.
_PF_ENDING = 0x4 | 0x400
_ENDED = (b"Z", b"X")  # for kernels without such flags


def snapshots(init: int, processes: Iterable[int], limit: int) -> set[int]:
    """The waiting snapshots of a worker among `processes`, at most `limit`, and all ending
    processes.

    Snapshots are children of init, lead process groups of their own, and block a signal as a mark.
    Code that imitates the mark is still bounded by the total limit of a session with snapshots. An
    ending process runs no code; on a machine under load it keeps its memory for a while, as
    replaced snapshots do.
    """
    states = {pid: _state(pid) for pid in processes}
    ending = {pid for pid, state in states.items() if state is not None and state.ending}
    waiting = [
        pid
        for pid, state in states.items()
        if pid not in ending and state is not None and state.waits(pid, init)
    ]
    return ending | set(waiting[:limit])


def runs(pid: int) -> bool:
    """Return whether the process exists and is not ending."""
    state = _state(pid)
    return state is not None and not state.ending


@dataclass(frozen=True, slots=True)
class _State:
    """The parent, process group and blocked signals of a process from /proc, and whether it is
    ending.
    """

    parent: int
    group: int
    blocked: int
    ending: bool

    def waits(self, pid: int, init: int) -> bool:
        """Return whether the process looks like a snapshot of the worker of this init."""
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
        words = status.partition(name)[2].split(None, 1)
        return int(words[0], 16) if words else 0

    pending = signals(b"SigPnd:") | signals(b"ShdPnd:")
    ending = bool(pending & _KILL) or bool(int(fields[6]) & _PF_ENDING) or fields[0] in _ENDED
    return _State(int(fields[1]), int(fields[2]), signals(b"SigBlk:"), ending)


def own(processes: Iterable[int]) -> int:
    """Bytes of pages that no process besides one of `processes` maps."""
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", _OWN) for pid in processes) << 10


def private(process: int) -> int:
    """Bytes of private anonymous memory of one process."""
    return _kilobytes(f"/proc/{process}/status", _PRIVATE, _WHOLE) << 10


def page_tables(processes: Iterable[int]) -> int:
    """Bytes of the page tables of `processes`."""
    return sum(_kilobytes(f"/proc/{pid}/status", _PAGE_TABLES) for pid in processes) << 10


def shared_with_others(snapshots: Iterable[int]) -> int:
    """Bytes of pages that `snapshots` share with others: their proportional part of them."""
    total = 0
    for pid in snapshots:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
            total += shares - _kilobytes(f"/proc/{pid}/smaps_rollup", _OWN)
        except PermissionError:
            continue  # then the parts of the others are unknown too, and are counted in full
    return max(0, total) << 10


def in_files(init: int) -> int:
    """Bytes in the private mounts of the session whose init is `init`."""
    total = 0
    for place in PRIVATE:
        usage = os.statvfs(f"/proc/{init}/root{place}")
        total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    return total


def resident(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, each measured alone."""
    return sum(_kilobytes(f"/proc/{pid}/status", _RESIDENT, _WHOLE) for pid in processes) << 10


def proportional(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, with shared pages divided among the processes that map them."""
    total = 0
    for pid in processes:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
            is_supported = bool(shares) or os.path.exists("/proc/self/smaps_rollup")
        except PermissionError:
            is_supported = False
        if not is_supported:
            # Too large an estimate is the safe side of a limit.
            total += resident((pid,))
        else:
            total += (shares + _kilobytes(f"/proc/{pid}/status", _PAGE_TABLES)) << 10
    return total


def _kilobytes(path: str, names: tuple[bytes, ...], otherwise: tuple[bytes, ...] = ()) -> int:
    """The sum of the rows `names` of a file with rows "NAME: 123 kB"; 0 for a process that is gone.

    The rows `otherwise` count if the file has none of the first.

    Raises:
        PermissionError: this process may not read the file.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            rows = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [row for row in rows if row.startswith(names)]
    found = found or [row for row in rows if otherwise and row.startswith(otherwise)]
    return sum(int(row.split()[1]) for row in found)


def use(folder: str, limit: int) -> int:
    """Bytes of the files of a directory, up to about `limit`."""
    for _ in range(_MAX_SCANS):
        try:
            return session_directory.use(folder, limit)
        except PermissionError:
            continue
        except OSError:
            return 0  # the session has ended
    return limit + 1  # a directory that code makes unreadable again and again counts as too large
