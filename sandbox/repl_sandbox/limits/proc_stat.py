"""`ProcStat`: what proc_pid_stat(5) says of a process and its use of processors."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# Threads that are looked at, one by one: as many as an ordinary session may have processes.
_MOST_THREADS: Final = 64
_RUNS: Final = b"R"
# proc_pid_stat(5), counted after the name.
_BEGAN: Final = 19


@dataclass(frozen=True, slots=True)
class ProcStat:
    """One process."""

    pid: int
    state: bytes  # of its first thread
    session: int  # that of setsid(2)
    ticks: int  # CPU time, of the children that it has waited for as well
    threads: int
    began: int  # in ticks since the system did

    @property
    def busy(self) -> bool:
        """Whether its first thread runs, or waits for a processor or in the kernel."""
        return self.state in (_RUNS, b"D")

    @property
    def wants(self) -> bool:
        """Whether it runs, or waits for nothing but a processor."""
        if self.state == _RUNS or self.threads == 1:
            return self.state == _RUNS
        path = f"/proc/{self.pid}/task"
        try:
            names = os.listdir(path)[:_MOST_THREADS]
        except OSError:
            return False
        return any(_fields(f"{path}/{name}/stat")[:1] == [_RUNS] for name in names)


def look(pids: Iterable[int]) -> list[ProcStat]:
    """Those that are still there."""
    return [stat for pid in pids if (stat := _stat(pid))]


def without_init(processes: Iterable[ProcStat], init: int) -> list[ProcStat]:
    """Return `processes` of a session but `init` and its helpers; none if `init` is not there."""
    found = list(processes)
    ours = {each.session for each in found if each.pid == init}
    return [each for each in found if ours and each.session not in ours]


def cpu_seconds(processes: Iterable[ProcStat]) -> float:
    """CPU time of `processes`, and of the children that they have waited for."""
    return sum(each.ticks for each in processes) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> ProcStat | None:
    fields = _fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    ticks = sum(map(int, fields[11:15]))
    threads, started = int(fields[17]), int(fields[_BEGAN])
    return ProcStat(pid, fields[0], int(fields[3]), ticks, threads, started)


def began(pid: int) -> int:
    """When process `pid` began, in ticks since the system did; -1 if it is gone."""
    fields = _fields(f"/proc/{pid}/stat")
    return int(fields[_BEGAN]) if fields else -1


def _fields(path: str) -> list[bytes]:
    """The fields behind the name, which comes in parentheses and may hold any byte."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []
