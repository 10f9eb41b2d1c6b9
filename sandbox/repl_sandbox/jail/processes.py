"""Irrevocable restrictions of a session's processes, and the end of their descendants.

Covers: gaining privileges by exec, outliving the parent, inspection by others of the same uid,
sharing a process group with processes outside the session. Does not cover: inspection by the
session's own code of itself, which is its right.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from errno import EINVAL, ENOSYS, EPERM

from ..native import libc
from ..native.libc import call
from ..native.library import Rows, perform
from . import reserved_descriptors


def have_one_thread_rows() -> Rows:
    """Return the rows that fail if there is another thread: unshare(2)."""
    yield call("unshare", libc.CLONE_THREAD)


def leave_group_rows() -> Rows:
    """Return the rows that start a session and a process group, without a terminal."""
    yield call("setsid")


def forbid_new_privileges_rows() -> Rows:
    """PR_SET_NO_NEW_PRIVS: no exec gains privileges, and seccomp filters may be loaded."""
    yield call("prctl", libc.PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent_rows(by: int = signal.SIGKILL) -> Rows:
    """PR_SET_PDEATHSIG: signal `by` when the parent ends. A change of credentials clears it."""
    yield call("prctl", libc.PR_SET_PDEATHSIG, int(by))


def adopt_orphans_rows(*, needed: bool = True) -> Rows:
    """PR_SET_CHILD_SUBREAPER: orphans below this process become its children.

    Unless `needed`, a kernel without it does not fail.
    """
    tolerated = () if needed else (EINVAL, ENOSYS, EPERM)
    yield call("prctl", libc.PR_SET_CHILD_SUBREAPER, 1, tolerated=tolerated)


def hide_memory_rows() -> Rows:
    """PR_SET_DUMPABLE 0: no ptrace, no /proc/PID/mem, no core, for any process of the same uid."""
    yield call("prctl", libc.PR_SET_DUMPABLE, 0)


def keep_descriptors_rows(descriptors: set[int]) -> Rows:
    """Return the rows that close every descriptor except `descriptors`."""
    for first, last in reserved_descriptors.gaps(descriptors):
        yield call("close_range", first, last, 0)


def forbid_new_privileges() -> None:
    """Apply `forbid_new_privileges_rows`."""
    perform(forbid_new_privileges_rows())


def gains_no_privileges() -> int:
    """PR_GET_NO_NEW_PRIVS: 1 if no exec gains privileges."""
    return int(libc.prctl(_GET_NO_NEW_PRIVS, 0))


# uapi/linux/prctl.h
_GET_NO_NEW_PRIVS = 39


def die_with_parent() -> None:
    """Apply `die_with_parent_rows`, with SIGKILL."""
    perform(die_with_parent_rows())


def adopt_orphans(*, needed: bool = True) -> None:
    """Apply `adopt_orphans_rows`."""
    perform(adopt_orphans_rows(needed=needed))


def hide_memory() -> None:
    """Apply `hide_memory_rows`."""
    perform(hide_memory_rows())


def stop_children() -> None:
    """Stop all descendants of this process, as `end_children` does before it kills."""
    _stopped(children())


def end_children(excluded: Container[int] = (), measured: int = 0) -> float:
    """End all descendants of this process, which has one thread, except the children `excluded`.

    Returns the CPU seconds of child `measured`, 0 if it was not among the ended ones.

    Without a pid namespace no call reaches all processes at once, and a process that forks all the
    time outruns single kills. So all are first stopped, until none is left that could fork, and
    then killed. This process adopts the orphans of each, so none can escape.
    """
    cpu = 0.0
    while ended := [pid for pid in children() if pid not in excluded]:
        for pid in _stopped(ended):
            _signal(pid, signal.SIGKILL)
        for pid in ended:
            _, _, usage = os.wait4(pid, 0)
            if pid == measured:
                cpu = usage.ru_utime + usage.ru_stime
    return cpu


def _stopped(roots: list[int]) -> set[int]:
    """Return `roots` and all their descendants, stopped."""
    return stop_all(lambda: [pid for root in roots for pid in descendants(root)])


def stop_all(members: Callable[[], Iterable[int]]) -> set[int]:
    """Stop `members`, read again until it names no running process; return those stopped."""
    stopped: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        found = set(members()) - stopped
        if not found:
            break
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    return stopped


# Rounds of stopping before killing: another process of the session may wake a stopped one.
_MAX_ROUNDS = 100


def end_all(members: Callable[[], Iterable[int]], measured: int = 0) -> tuple[float, bool]:
    """Kill `members`, read again until it names none, and reap the children of this process there.

    Return the CPU seconds of child `measured`, 0 if it was not among them, and whether none is
    left: processes that `members` spares may make others without end. A dead process whose parent
    is spared cannot be reaped here; `members` must not name it.
    """
    cpu = 0.0
    for _ in range(_MAX_ENDINGS):
        killed = stop_all(members)
        if not killed:
            return cpu, True
        for pid in killed:
            _signal(pid, signal.SIGKILL)
        seconds, reaped = _reap(killed, measured)
        cpu += seconds
        if not reaped:
            time.sleep(_PAUSE)
    return cpu, False


# Rounds of killing, and seconds between two if no child of this process died in the first: the
# kernel may be freeing the memory of a grandchild.
_MAX_ENDINGS, _PAUSE = 100, 0.002


def _reap(killed: set[int], measured: int) -> tuple[float, bool]:
    """Wait for the children of this process among `killed`, also those that become children by the
    death of others; return the CPU seconds of `measured`, and whether there were any.
    """
    cpu, left = 0.0, set(killed)
    while ended := left.intersection(children()):
        for pid in ended:
            _, _, usage = os.wait4(pid, 0)
            if pid == measured:
                cpu = usage.ru_utime + usage.ru_stime
        left -= ended
    return cpu, len(left) < len(killed)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def descendants(pid: int) -> Iterator[int]:
    """Return `pid` and all its descendants; proc(5) lists them by the thread that made them."""
    # No recursion: code decides how deep its processes are nested.
    found = [pid]
    while found:
        pid = found.pop()
        yield pid
        found.extend(_children_of(pid))


def threads(pids: Iterable[int]) -> int:
    """Return the number of threads of the processes `pids` together."""
    return sum(map(_threads_of, pids))


def _threads_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0


def _children_of(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                yield from map(int, file.read().split())
        except FileNotFoundError:
            if not os.path.exists("/proc/thread-self/children"):
                yield from _children_by_parents(pid)
                return
        except OSError:
            continue


def _children_by_parents(parent: int) -> Iterator[int]:
    """Return the same on a kernel without those lists, from each process's parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                yield int(name)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of processes, and of the children that they have waited for."""
    return sum(map(_ticks, pids)) / os.sysconf("SC_CLK_TCK")


# proc_pid_stat(5), counted after the name: state; utime, stime, cutime, cstime.
_STATE, _CPU_FIELDS = 0, slice(11, 15)


def _ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[_CPU_FIELDS]))


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name comes second, in parentheses, and may contain any byte.
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether process `pid` exists and has not ended yet."""
    return _stat(pid)[_STATE : _STATE + 1] not in ([], [b"Z"], [b"X"])


class Attention:
    """Tells a process that does something else from one that a busy machine does not run.

    An awaited process runs, or waits for a processor or a disk, until it has done its part. A
    process that rests again and again, or uses much CPU time, will not do it.
    """

    def __init__(self, pid: int, rests: int, cpu: float) -> None:
        """`rests`: the number of looks that may find it at rest; `cpu`: the CPU seconds that it
        may use.
        """
        self.pid = pid
        self._rests = rests
        self._ticks = _ticks(pid) + int(cpu * os.sysconf("SC_CLK_TCK"))

    def is_elsewhere(self) -> bool:
        """Look once; return whether the process has used up what it may."""
        fields = _stat(self.pid)
        if not fields:
            return True
        self._rests -= fields[_STATE] in _AT_REST
        return self._rests < 0 or sum(map(int, fields[_CPU_FIELDS])) > self._ticks


# Asleep, stopped, or ended.
_AT_REST = (b"S", b"T", b"Z", b"X")


def children() -> list[int]:
    """Return the children of this process, which has one thread: proc(5), children.

    Until it waits for one, no other process can get that child's number.
    """
    try:
        with open("/proc/thread-self/children", "rb", buffering=0) as file:
            found = [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        found = list(_children_by_parents(os.getpid()))
    # The list may leave out a child while others end; then there is still one to wait for.
    return found or _one_child()


def _one_child() -> list[int]:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return [] if ended is None else [ended.si_pid]


def thread_count() -> int:
    """Return the number of threads of this process, including those of C libraries."""
    return os.stat("/proc/self/task").st_nlink - 2


# Threads of preloaded libraries that may stay in a template: each waits for work that a template
# never has, and holds no lock meanwhile, so that a fork may lack it.
_IDLE_THREADS = {"polars-ooc-clea": "polars: it removes files of data that exceeded the memory"}


def other_threads() -> list[str]:
    """Return the kernel's names of this process's threads, but the first and those of the table."""
    if thread_count() == 1:
        return []
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with suppress(OSError), open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
                names.append(file.read().strip())
    return [name for name in names if name not in _IDLE_THREADS]
