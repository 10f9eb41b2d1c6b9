"""The memory, threads, files and CPU time of a session's processes, from `/proc`."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..jail import processes, session_directory
from ..jail.mounts import FILE_SYSTEMS
from ..protocol.control import SNAPSHOT_SIGNAL

# The memory, threads and files of a session's processes, from `/proc`.
#
# Mapped files do not count, but what the kernel keeps about each mapping does. Without a cgroup,
# shared anonymous memory that is kept but not mapped (unmapped in part, or given to madvise) is
# not seen.

# Scans of a directory that code made unreadable during a scan.
_MAX_SCANS = 3

# proc(5): private pages, pages of shared memory, page tables.
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmPTE:")
# The same, where a page that n processes map counts 1/n for each.
_PROPORTIONAL = (b"Pss_Anon:", b"Pss_Shmem:")
_PAGE_TABLES = (b"VmPTE:",)
_ADDRESSES = (b"VmSize:",)
# Bytes of the kernel for one mapping: its vm_area_struct has 184 to 256, by version, and the tree
# of a process 16 to 20 for each.
MAPPING_SIZE = 256
_BLOCK = 1 << 16
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


def is_running(pid: int) -> bool:
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


def unshared_memory(processes: Iterable[int]) -> int:
    """Bytes of pages that no process besides one of `processes` maps."""
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", _OWN) for pid in processes) << 10


def private_memory(process: int) -> int:
    """Bytes of private anonymous memory of one process."""
    return _kilobytes(f"/proc/{process}/status", _PRIVATE, _WHOLE) << 10


def page_tables(processes: Iterable[int]) -> int:
    """Bytes of the page tables of `processes`."""
    return sum(_kilobytes(f"/proc/{pid}/status", _PAGE_TABLES) for pid in processes) << 10


def address_space(processes: Iterable[int]) -> int:
    """Bytes of addresses that `processes` have mapped, in use or not."""
    return sum(_kilobytes(f"/proc/{pid}/status", _ADDRESSES) for pid in processes) << 10


def mappings(processes: Iterable[int], limit: int) -> int:
    """Bytes that the kernel keeps about the mappings of `processes`, up to about `limit`.

    Takes half a microsecond for each. A process whose mappings this one may not read has none.
    """
    total = 0
    for pid in processes:
        if total > limit:
            break
        total += _count_mappings(pid) * MAPPING_SIZE
    return total


def _count_mappings(pid: int) -> int:
    count = 0
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                count += block.count(b"\n")
    except OSError:
        pass  # it is gone, or hides them
    return count


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


def memory_in_files(init: int) -> int:
    """Bytes in the private mounts of the session whose init is `init`."""
    total = 0
    for place in FILE_SYSTEMS:
        usage = os.statvfs(f"/proc/{init}/root{place}")
        total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    return total


def resident_memory(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, each measured alone."""
    return sum(_kilobytes(f"/proc/{pid}/status", _RESIDENT, _WHOLE) for pid in processes) << 10


def proportional_memory(processes: Iterable[int]) -> int:
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
            total += resident_memory((pid,))
        else:
            total += (shares + _kilobytes(f"/proc/{pid}/status", _PAGE_TABLES)) << 10
    return total


def tree_memory(root: int) -> int:
    """Bytes that the descendants of `root` hold; pages that forks share count once.

    The proportional shares of all. If this process may not read one of them, an estimate: each
    process counts by the bytes that it holds beyond its parent, which it was forked from.
    """
    pids = [pid for pid in processes.descendants(root) if pid != root]
    try:
        shares = sum(_kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL) for pid in pids)
    except PermissionError:
        shares = 0
    if shares:  # 0 also on a kernel without them
        return (shares << 10) + page_tables(pids)
    held = {pid: resident_memory((pid,)) for pid in pids}
    return sum(max(0, held[pid] - held.get(_parent_of(pid), 0)) for pid in pids)


def _parent_of(pid: int) -> int:
    fields = _fields(f"/proc/{pid}/stat")
    return int(fields[1]) if fields else 0


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


def directory_use(folder: str, limit: int) -> int:
    """Bytes of the files of a directory, up to about `limit`."""
    for _ in range(_MAX_SCANS):
        try:
            return session_directory.use(folder, limit)
        except PermissionError:
            continue
        except OSError:
            return 0  # the session has ended
    return limit + 1  # a directory that code makes unreadable again and again counts as too large


# `ProcStat`: the fields of proc_pid_stat(5) about a process and its use of processors.

# The threads to inspect one by one: as many as an ordinary session may have processes.
_MAX_THREADS: Final = 64
_RUNS: Final = b"R"
# proc_pid_stat(5), counted after the name.
_BEGAN: Final = 19


@dataclass(frozen=True, slots=True)
class ProcStat:
    """One process."""

    pid: int
    state: bytes  # of the first thread
    session: int  # as of setsid(2)
    ticks: int  # CPU time, including that of children that were waited for
    threads: int
    began: int  # the start, in ticks since the system booted

    @property
    def busy(self) -> bool:
        """True if the first thread runs, or waits for a processor or in the kernel."""
        return self.state in (_RUNS, b"D")

    @property
    def wants(self) -> bool:
        """True if the process runs, or waits for nothing but a processor."""
        if self.state == _RUNS or self.threads == 1:
            return self.state == _RUNS
        path = f"/proc/{self.pid}/task"
        try:
            names = os.listdir(path)[:_MAX_THREADS]
        except OSError:
            return False
        return any(_fields(f"{path}/{name}/stat")[:1] == [_RUNS] for name in names)


def read_all(pids: Iterable[int]) -> list[ProcStat]:
    """Return those of the processes that still exist."""
    return [stat for pid in pids if (stat := _stat(pid))]


def without_init(processes: Iterable[ProcStat], init: int) -> list[ProcStat]:
    """Return `processes` of a session except `init` and its helpers; none if `init` is not among
    them.
    """
    found = list(processes)
    own_sessions = {each.session for each in found if each.pid == init}
    return [each for each in found if own_sessions and each.session not in own_sessions]


def cpu_seconds(processes: Iterable[ProcStat]) -> float:
    """The CPU time of `processes`, including that of children that they have waited for."""
    return sum(each.ticks for each in processes) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> ProcStat | None:
    fields = _fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    ticks = sum(map(int, fields[11:15]))
    threads, started = int(fields[17]), int(fields[_BEGAN])
    return ProcStat(pid, fields[0], int(fields[3]), ticks, threads, started)


def began(pid: int) -> int:
    """The start of process `pid` in ticks since the system booted; -1 if it is gone."""
    fields = _fields(f"/proc/{pid}/stat")
    return int(fields[_BEGAN]) if fields else -1


def _fields(path: str) -> list[bytes]:
    """The fields behind the name, which is in parentheses and may contain any byte."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []


# Queries about processes and their files, by name: for sessions that only another process can
# see.
#
# `query_here` answers them itself. The answers are JSON, so that another process can send them.

ProcessQuery: TypeAlias = Callable[..., Any]

# In the order in which they are reported.
NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
# Rows of /proc/PID/status, proc_pid_status(5): a few of some sixty, read for every session.
_FIELD = re.compile(r"^(Uid|NSpid|Cap\w+|NoNewPrivs|Seccomp|Seccomp_filters):\t(.*)$", re.MULTILINE)


def namespace(pid: int | str, name: str) -> str:
    """A namespace of a process: its name and number, as proc_pid_ns(5) has them."""
    return os.readlink(f"/proc/{pid}/ns/{name}")


def status(pid: int | str) -> dict[str, str]:
    """The users, capabilities and filters of a process, as the kernel writes them."""
    return dict(_FIELD.findall(read(pid, "status")))


def read(pid: int | str, name: str) -> str:
    """A file of a process in /proc; unbuffered, because each is read once and in one piece."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read().decode("utf-8", "replace")


def _is_read_only(pid: int) -> bool:
    # Flags of the file system and of the mount: each can be read-only by itself, statvfs(3).
    return bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY)


def _parent(pid: int) -> int:
    """proc(5), the second field behind the name in parentheses."""
    return int(read(pid, "stat").rpartition(")")[2].split(None, 2)[1])


def _cpu_clock(pid: int) -> float:
    return time.clock_gettime(process_cpu(pid))


def process_cpu(pid: int) -> int:
    """The clock id of the CPU time of process `pid`, for `time.clock_gettime`.

    As clock_getcpuclockid(3) makes it: the complement of the pid in the upper bits, and
    CPUCLOCK_SCHED (2) in the lower three.
    """
    return (~pid << 3) | 2


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _running(pids: Sequence[int]) -> int:
    return processes.threads(filter(is_running, pids))


TABLE: Final[Mapping[str, ProcessQuery]] = {
    "address_space": address_space,
    "mappings": mappings,
    "shared_with_others": shared_with_others,
    "snapshots": lambda init, pids, most: sorted(snapshots(init, pids, most)),
    "cpu_clock": _cpu_clock,
    "cpu_seconds": processes.cpu_seconds,
    "descendants": lambda pid: list(processes.descendants(pid)),
    "is_read_only": _is_read_only,
    "kill": _kill,
    "namespace": namespace,
    "parent": _parent,
    "private": private_memory,
    "proportional": proportional_memory,
    "read": read,
    "resident": resident_memory,
    "running": _running,
    "runs": is_running,
    "status": status,
    "threads": processes.threads,
    "use": directory_use,
}


def query_here(name: str, *arguments: Any) -> Any:
    """Answer a query about a process that this one can see; OSError if it cannot."""
    return TABLE[name](*arguments)
