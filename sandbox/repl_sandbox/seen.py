"""`Seen`: what proc_pid_stat(5) says of a process that is looked at for its use of processors."""

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
class Seen:
    """One process. `group` and `session` are those of setpgid(2) and setsid(2)."""

    pid: int
    state: bytes  # of its first thread
    group: int
    session: int
    ticks: int  # CPU time, of the children that it has waited for as well
    nice: int  # of its first thread
    threads: int
    began: int  # in ticks since the system did

    @property
    def crowds(self) -> bool:
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


def look(pids: Iterable[int]) -> list[Seen]:
    """Those that are still there."""
    return [seen for pid in pids if (seen := _seen(pid))]


def theirs(processes: Iterable[Seen], init: int) -> list[Seen]:
    """Those of a session's `processes` that are not its `init` or do its work; none without it."""
    seen = list(processes)
    ours = {each.session for each in seen if each.pid == init}
    return [each for each in seen if ours and each.session not in ours]


def cpu_seconds(processes: Iterable[Seen]) -> float:
    """CPU time of `processes`, and of the children that they have waited for."""
    return sum(seen.ticks for seen in processes) / os.sysconf("SC_CLK_TCK")


def _seen(pid: int) -> Seen | None:
    fields = _fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    group, session = int(fields[2]), int(fields[3])
    ticks = sum(map(int, fields[11:15]))
    nice, threads, started = int(fields[16]), int(fields[17]), int(fields[_BEGAN])
    return Seen(pid, fields[0], group, session, ticks, nice, threads, started)


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
