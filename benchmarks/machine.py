"""Properties of the machine that figures depend on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

_STAT, _CPUINFO = Path("/proc/stat"), Path("/proc/cpuinfo")
# proc_stat(5), the first line: user nice system idle iowait irq softirq steal.
_IDLE, _STEAL = (3, 4), 7


@dataclass(frozen=True, slots=True)
class Times:
    """Ticks of all cores since the machine started: at work, and wanted but not given."""

    work: int
    stolen: int

    @classmethod
    def now(cls) -> Times:
        """As the kernel counts them."""
        ticks = [int(tick) for tick in _STAT.read_text().split("\n", 1)[0].split()[1 : _STEAL + 2]]
        work = sum(ticks[:_STEAL]) - sum(ticks[number] for number in _IDLE)
        return cls(work, ticks[_STEAL])


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, watched from when it is made until it is described."""

    before: Times = field(default_factory=Times.now)

    def stolen(self) -> float:
        """The part of the processor's time that a virtual machine asked for and did not get.

        Everything takes longer by it, floors too, and not evenly: from a few per cent on, figures
        say more about the host than about the code.
        """
        now = Times.now()
        stolen = now.stolen - self.before.stolen
        return stolen / max(1, stolen + now.work - self.before.work)

    def describe(self) -> dict[str, str]:
        """Its summary in a line, and what that is made of."""
        python = f"{platform.python_implementation()} {platform.python_version()}"
        release = ".".join(platform.release().split(".")[:2])
        kernel = f"{platform.system()} {release}"
        cores = f"{len(os.sched_getaffinity(0))} cores"
        processor = _processor()
        load, stolen = f"load {os.getloadavg()[0]:.1f}", f"{self.stolen():.0%} stolen"
        return {
            "summary": f"{python}, {kernel}, {cores} of {processor}, {load}, {stolen}",
            "python": python,
            "kernel": kernel,
            "cores": cores,
            "processor": processor,
            "stolen": stolen,
            "architecture": platform.machine(),
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def _processor() -> str:
    """Its name, with the numbers that tell generations of one name apart: proc_cpuinfo(5).

    Ratios travel from machine to machine only as far as caches and predictors are alike.
    """
    first = _CPUINFO.read_text().split("\n\n", 1)[0]
    parted = [line.partition(":") for line in first.splitlines()]
    rows = {name.strip(): value.strip() for name, _, value in parted}
    numbers = [rows[name] for name in ("cpu family", "model", "CPU part") if name in rows]
    return f"{rows.get('model name', platform.machine())} ({'/'.join(numbers)})"
