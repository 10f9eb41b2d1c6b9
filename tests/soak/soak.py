"""A soak: many sessions of a sandbox at once, each doing its steps, until the time is up."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import psutil

from repl_sandbox import Limits, Sandbox
from tests.internals import zygote_pid
from tests.waiting import comes_to

from .figures import Figures
from .fork_bomb import Storm, storm
from .process_resources import Belongings, anonymous, belongings, in_use, processes_of
from .steps import LEFT, Soaked

TIERS = ("jailed", "confined")
# The number of states to which sessions of each tier can roll back: the default, and more.
_HISTORY = {"jailed": 1, "confined": 3}
_LIMITS = Limits(timeout=120.0, grace=0.05, memory="256MiB")
_THREADS = 4
# Besides init: the worker and the workspace snapshots' helper.
_PROCESSES = 3
# Of at least this number of interrupts, the share that may exceed the grace period on a loaded
# machine. Fewer interrupts give no share.
_ENOUGH, _LATE = 100, 0.2
# Kills at any moment that may lose the earlier state too: they have to occur within microseconds.
_SHALLOW = 0.01
# Bytes that the host's memory in use may grow by, figures of a long soak included, and that the
# zygote's pages may grow by: of a zygote, only the pages can be counted.
_GROWTH = 4 << 20


@dataclass(slots=True)
class Report:
    """Result of a soak: figures and faults."""

    figures: Figures = field(default_factory=Figures)
    faults: list[str] = field(default_factory=list)
    storm: Storm | None = None
    growth: tuple[int, int] = (0, 0)  # bytes in use by the host, and of pages of its zygote

    def told(self) -> dict[str, Any]:
        """All figures, formatted."""
        host, zygote = (round(grown / 2**20, 2) for grown in self.growth)
        grown = {"host grew MiB": host, "zygote grew MiB": zygote}
        stormed = {} if self.storm is None else {"storm of daemons": self.storm.told()}
        return {**self.figures.told(), **stormed, **grown, "faults": self.faults}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Subject and duration of a soak. The same seed gives the same steps to each session.

    `least`: steps of each thread, however long they take. `storms`: whether there is one before, in
    a session of its own.
    """

    tier: Literal["jailed", "confined"]
    python: str | None = None
    seconds: float
    sessions: int
    seed: str
    least: int = 0
    storms: bool = True

    @property
    def history(self) -> int:
        """The number of states to which a session can roll back."""
        return _HISTORY[self.tier]

    def warm_up(self) -> Plan:
        """A shorter one before it, after which what is held may not grow any more."""
        return replace(self, seconds=1.0 + self.seconds / 10, seed=f"{self.seed}-warm-up", least=0)


def soak(plan: Plan) -> Report:
    """Soak the sessions of a sandbox of its own, all at once."""
    report = Report()
    tier, python, history = plan.tier, plan.python, plan.history
    with Sandbox(isolation=tier, python=python, limits=_LIMITS, history=history) as sandbox:
        zygote = zygote_pid(sandbox)
        folder = _run(sandbox, plan.warm_up(), report)
        if plan.storms:
            report.storm = storm(sandbox)
            report.faults += report.storm.faults()
        before, memory = belongings(zygote, folder), (in_use(), anonymous(str(zygote)))
        _run(sandbox, plan, report)
        report.faults += _left_behind(before, zygote, folder)
        report.growth = in_use() - memory[0], anonymous(str(zygote)) - memory[1]
    interrupts = report.figures.steps["interrupted"]
    if interrupts >= _ENOUGH and report.figures.lates > interrupts * _LATE:
        report.faults.append(f"{report.figures.lates} interrupts came to nothing")
    shots = report.figures.steps["shot_amid"]
    if report.figures.shallows > 1 + shots * _SHALLOW:
        report.faults.append(f"{report.figures.shallows} states lost to {shots} shots")
    if max(report.growth) > _GROWTH:
        report.faults.append(f"memory grew by {report.growth} bytes")
    return report


def _left_behind(before: Belongings, zygote: int, folder: str) -> list[str]:
    """Describe the resources that stay above `before`; other resources may decrease."""

    def more() -> list[str]:
        after = belongings(zygote, folder)
        return [
            f"left behind: {name}: {became!r}, before {was!r}"
            for name, was, became in zip(before._fields, before, after, strict=True)
            if _is_more(was, became)
        ]

    return comes_to(more, [])


def _is_more(was: Any, became: Any) -> bool:
    """Lists of numbers, and of names."""
    return bool(became > was if isinstance(was, int) else {*became} - {*was})


def _run(sandbox: Sandbox, plan: Plan, report: Report) -> str:
    """Soak for so long; the directory that those of the sessions are in, "" if they have none."""
    soaked = [
        Soaked(sandbox, plan.history, f"{plan.seed}-{number}", report.figures)
        for number in range(plan.sessions)
    ]
    folder = os.path.dirname(soaked[0].folder)
    end = time.monotonic() + plan.seconds
    threads = [
        threading.Thread(target=_drive, args=(soaked[number::_THREADS], plan, number, end, report))
        for number in range(min(_THREADS, plan.sessions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in soaked:
        try:
            each.settle()
            report.faults += _crowds(each, plan.history)
        # Boundary: the report is to have every fault.
        except Exception as error:  # noqa: BLE001
            report.faults.append(f"{type(error).__name__}: {error}")
        each.close()
    return folder


def _drive(soaked: list[Soaked], plan: Plan, number: int, end: float, report: Report) -> None:
    """Step random sessions in thread `number` until `end`."""
    chance, done = random.Random(f"{plan.seed}/{number}"), 0
    try:
        while (time.monotonic() < end or done < plan.least) and not report.faults:
            chance.choice(soaked).step()
            done += 1
    # Boundary: an exception of a thread must reach the report.
    except Exception as error:  # noqa: BLE001
        report.faults.append(f"{type(error).__name__}: {error}")


def _crowds(soaked: Soaked, history: int) -> list[str]:
    """Whether a session at rest has more processes than it needs."""
    most = 1 + _PROCESSES + history

    def too_many() -> list[str]:
        there = _ours(soaked.init)
        return there if len(there) > most else []

    left = comes_to(too_many, [])
    return [f"{len(left)} processes of a session at rest: {left}"] if left else []


def _ours(init: int) -> list[str]:
    """The processes of a session but for those that its cells have left."""
    found = []
    for process in processes_of(init):
        with suppress(psutil.NoSuchProcess):
            zombie = process.status() == psutil.STATUS_ZOMBIE
            if zombie or LEFT not in process.cmdline():
                found.append(str(process))
    return found
