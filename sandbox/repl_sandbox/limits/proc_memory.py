"""What processes of a session hold, as `/proc` and its files say: memory, threads, files.

Mapped files count for nobody. Without a group of the kernel's: shared anonymous memory that is kept
without being in view (unmapped in part, or given to madvise) is not seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from ..jail import session_directory
from ..jail.mounts import PRIVATE
from ..jail.processes import SNAPSHOT_SIGNAL

# Looks at a directory that was closed while it was looked at.
_LOOKS = 3

# proc(5): private pages, pages of shared memory, page tables.
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmPTE:")
# The same, where a page that n processes map counts 1/n for each.
_PROPORTIONAL = (b"Pss_Anon:", b"Pss_Shmem:")
_PAGE_TABLES = (b"VmPTE:",)
_PRIVATE = (b"RssAnon:",)
# With the pages of files: of a kernel that does not tell these apart.
_WHOLE = (b"VmRSS:",)
# What nobody else maps.
_OWN = (b"Private_Clean:", b"Private_Dirty:")
# proc(5), SigBlk: the sign of a copy that waits.
_WAITS = 1 << (SNAPSHOT_SIGNAL - 1)
_KILL = 1 << (signal.SIGKILL - 1)
# linux/sched.h: PF_EXITING, PF_SIGNALED; proc_pid_stat(5) has them in `flags`.
_PF_ENDING = 0x4 | 0x400
_ENDED = (b"Z", b"X")  # for kernels that have no such flags


def copies(init: int, processes: Iterable[int], most: int) -> set[int]:
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


def runs(pid: int) -> bool:
    """Whether the process is there, and not just ending."""
    state = _state(pid)
    return state is not None and not state.ending


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
        told = status.partition(name)[2].split(None, 1)
        return int(told[0], 16) if told else 0

    pending = signals(b"SigPnd:") | signals(b"ShdPnd:")
    ending = bool(pending & _KILL) or bool(int(fields[6]) & _PF_ENDING) or fields[0] in _ENDED
    return _State(int(fields[1]), int(fields[2]), signals(b"SigBlk:"), ending)


def own(processes: Iterable[int]) -> int:
    """Bytes of pages that nobody maps besides one of `processes`."""
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", _OWN) for pid in processes) << 10


def private(process: int) -> int:
    """Bytes of anonymous memory of one process, none of it shared by intent."""
    return _kilobytes(f"/proc/{process}/status", _PRIVATE, _WHOLE) << 10


def page_tables(processes: Iterable[int]) -> int:
    """Bytes that the kernel holds to map the memory of `processes`."""
    return sum(_kilobytes(f"/proc/{pid}/status", _PAGE_TABLES) for pid in processes) << 10


def also_held(copies: Iterable[int]) -> int:
    """Bytes of pages that `copies` share with others: the part that counts there for them."""
    total = 0
    for pid in copies:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
            total += shares - _kilobytes(f"/proc/{pid}/smaps_rollup", _OWN)
        except PermissionError:
            continue  # then the shares of the others are not known either, and are counted whole
    return max(0, total) << 10


def in_files(init: int) -> int:
    """Bytes in the private places of the session whose init is `init`."""
    total = 0
    for place in PRIVATE:
        seen = os.statvfs(f"/proc/{init}/root{place}")
        total += (seen.f_blocks - seen.f_bfree) * seen.f_frsize
    return total


def resident(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, each looked at alone."""
    return sum(_kilobytes(f"/proc/{pid}/status", _RESIDENT, _WHOLE) for pid in processes) << 10


def proportional(processes: Iterable[int]) -> int:
    """Bytes that `processes` hold, a page that several map shared out among them."""
    total = 0
    for pid in processes:
        try:
            shares = _kilobytes(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)
            known = bool(shares) or os.path.exists("/proc/self/smaps_rollup")
        except PermissionError:
            known = False
        if not known:
            # Too much is better than nothing: this side of a limit is the safe one.
            total += resident((pid,))
        else:
            total += (shares + _kilobytes(f"/proc/{pid}/status", _PAGE_TABLES)) << 10
    return total


def _kilobytes(path: str, names: tuple[bytes, ...], otherwise: tuple[bytes, ...] = ()) -> int:
    """The sum of the rows `names` of a file that says "NAME: 123 kB"; 0 for a process that is gone.

    Of the rows `otherwise` where the file has none of the first.

    Raises:
        PermissionError: this process may not look.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            rows = file.read().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [row for row in rows if row.startswith(names)]
    found = found or [row for row in rows if otherwise and row.startswith(otherwise)]
    return sum(int(row.split()[1]) for row in found)


def use(folder: str, most: int) -> int:
    """Bytes that the files of a directory take, as far as they are not more than `most`."""
    for _ in range(_LOOKS):
        try:
            return session_directory.use(folder, most)
        except PermissionError:
            continue
        except OSError:
            return 0  # the session has ended
    return most + 1  # what code closes to this process again and again, it hides
