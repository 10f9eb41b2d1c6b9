"""`ProcessorTime`: what everything that is measured has taken of the processors.

On a machine whose speed is shared with others it swings less than rates do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..machine import Times

# Version 1 of control groups, as far as nothing but this time is kept there: where it is mounted
# together with the share of processors, a group of our own would change the share as well.
_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_TOGETHER = "cpu.shares"
_NANOSECOND = 1e-9
_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of processors, kernel included, that were used so far.

    `group`: of the processes in it, those that have ended too; None: of the whole machine,
    which counts whatever else runs there.
    """

    group: Path | None

    @property
    def told(self) -> str:
        """Whose it is, in words."""
        return "generator, server and sessions" if self.group else "the whole machine"

    def now(self) -> float:
        """As the kernel counts it."""
        if self.group is None:
            return Times.now().work * _TICK
        return int((self.group / "cpuacct.usage").read_text()) * _NANOSECOND


@contextmanager
def processor_time() -> Iterator[ProcessorTime]:
    """That of this process and of all that it starts from now on, if a group can be made for them.

    They must have ended before this does.
    """
    before = _own_group()
    group = None if before is None else _made()
    try:
        yield ProcessorTime(group)
    finally:
        if before is not None and group is not None:
            _move_to(before)
            group.rmdir()


def _made() -> Path | None:
    """A group with this process in it; None if there cannot be one."""
    group = _GROUPS / f"repl-env-benchmark-{os.getpid()}"
    if (_GROUPS / _TOGETHER).exists():
        return None
    try:
        group.mkdir()
        _move_to(group)
    except OSError:
        return None
    return group


def _own_group() -> Path | None:
    """The folder of the group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "cpuacct":
            return _GROUPS / path.lstrip("/")
    return None


def _move_to(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
