"""`ProcStat`: the fields of proc_pid_stat(5) about a process and its use of processors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
