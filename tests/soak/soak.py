"""A soak: many sessions of a sandbox at once, each doing its steps, until the time is up."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from repl_sandbox import Limits, Sandbox

from .belongings import Belongings, belongings, private_memory, processes_of
from .figures import Figures
from .steps import LEFT, Soaked

TIERS = ("jailed", "confined")
# How many states back the sessions of each tier keep: the default, and more.
_HISTORY = {"jailed": 1, "confined": 3}
_LIMITS = Limits(timeout=120.0, grace=0.05, memory="256MiB")
_THREADS = 4
# Besides its init: the worker and the keeper of its files.
_PROCESSES = 3
# Seconds for a session at rest to have its dead collected, and for what ends with the sessions.
_PATIENCE = 60.0
# Of so many interrupts or more, those that may take longer than the grace period on a machine with
# much to do. Fewer say nothing of how often.
_ENOUGH, _LATE = 100, 0.2
# What a host and a zygote may have grown by: allocators keep what they were once given.
_GROWTH = 8 << 20


@dataclass(slots=True)
class Report:
    """What a soak came to: figures, and what was not as it had to be."""

    figures: Figures = field(default_factory=Figures)
    faults: list[str] = field(default_factory=list)
    growth: tuple[int, ...] = ()  # bytes of memory: of the host, of its zygote

    def told(self) -> dict[str, Any]:
        """All of it, to be printed."""
        host, zygote = (round(grown / 2**20, 2) for grown in self.growth)
        grown = {"host grew MiB": host, "zygote grew MiB": zygote}
        return {**self.figures.told(), **grown, "faults": self.faults}


def soak(
    tier: str, python: str | None, *, seconds: float, sessions: int, seed: str, least: int = 0
) -> Report:
    """Soak `sessions` sessions at once. The same seed gives the same steps to each of them.

    `least`: steps of each thread, however long they take.
    """
    report = Report()
    history = _HISTORY[tier]
    with Sandbox(isolation=tier, python=python, limits=_LIMITS, history=history) as sandbox:  # type: ignore[arg-type]
        zygote = sandbox._zygote.pid
        folder = _run(sandbox, report, tier, 1.0 + seconds / 10, sessions, f"{seed}-warm-up")
        before, memory = belongings(zygote, folder), private_memory(zygote)
        _run(sandbox, report, tier, seconds, sessions, seed, least)
        report.faults += _left_behind(before, zygote, folder)
        report.growth = tuple(b - a for a, b in zip(memory, private_memory(zygote), strict=True))
    interrupts = report.figures.steps["interrupted"]
    if interrupts >= _ENOUGH and report.figures.lates > interrupts * _LATE:
        report.faults.append(f"{report.figures.lates} interrupts came to nothing")
    if max(report.growth) > _GROWTH:
        report.faults.append(f"memory grew by {report.growth} bytes")
    return report


def _left_behind(before: Belongings, zygote: int, folder: str) -> list[str]:
    """What there is more than before, and stays. What else this process had may end meanwhile."""
    end = time.monotonic() + _PATIENCE
    while True:
        after = belongings(zygote, folder)
        found = [
            f"left behind: {name}: {became!r}, before {was!r}"
            for name, was, became in zip(before._fields, before, after, strict=True)
            if _is_more(was, became)
        ]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def _is_more(was: Any, became: Any) -> bool:
    """Of numbers, and of names."""
    return bool(became > was if isinstance(was, int) else {*became} - {*was})


def _run(
    sandbox: Sandbox,
    report: Report,
    tier: str,
    seconds: float,
    sessions: int,
    seed: str,
    least: int = 0,
) -> str:
    """Soak for so long; the directory that those of the sessions are in, "" if they have none."""
    history = _HISTORY[tier]
    soaked = [Soaked(sandbox, history, f"{seed}-{n}", report.figures) for n in range(sessions)]
    folder = os.path.dirname(soaked[0].folder)
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(
            target=_drive, args=(soaked[n::_THREADS], end, least, report, f"{seed}/{n}")
        )
        for n in range(min(_THREADS, sessions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in soaked:
        try:
            each.settle()
            report.faults += _crowds(each, history)
        # Boundary: the report is to have every fault.
        except Exception as error:  # noqa: BLE001
            report.faults.append(f"{type(error).__name__}: {error}")
        each.close()
    return folder


def _drive(soaked: list[Soaked], end: float, least: int, report: Report, seed: str) -> None:
    chance, done = random.Random(seed), 0
    try:
        while (time.monotonic() < end or done < least) and not report.faults:
            chance.choice(soaked).step()
            done += 1
    # Boundary: what a thread raises must reach the report.
    except Exception as error:  # noqa: BLE001
        report.faults.append(f"{type(error).__name__}: {error}")


def _crowds(soaked: Soaked, history: int) -> list[str]:
    """Whether a session at rest has more processes than it needs."""
    most = 1 + _PROCESSES + history
    end = time.monotonic() + _PATIENCE
    while len(left := _ours(soaked.init)) > most:
        if time.monotonic() > end:
            return [f"{len(left)} processes of a session at rest: {left}"]
        time.sleep(0.01)
    return []


def _ours(init: int) -> list[str]:
    """The processes of a session but for those that its cells have left."""
    found = []
    for process in processes_of(init):
        with suppress(psutil.NoSuchProcess):
            zombie = process.status() == psutil.STATUS_ZOMBIE
            if zombie or LEFT not in process.cmdline():
                found.append(str(process))
    return found
