"""Irrevocable restrictions of a session's processes, and the end of their descendants.

Covers: gaining privileges by exec, outliving the parent, inspection by others of the same uid,
sharing a process group with processes outside the session. Does not cover: inspection by the
session's own code of itself, which is its right.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from errno import EINVAL, ENOSYS, EPERM

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows, perform
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


# proc_pid_stat(5), counted after the name: utime, stime, cutime, cstime.
_CPU_FIELDS = slice(11, 15)


def _ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The name comes second, in parentheses, and may contain any byte.
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[_CPU_FIELDS]))


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
