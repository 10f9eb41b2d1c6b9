"""A load: clients that step all the time, for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TypeAlias

from .processor_time import ProcessorTime

Step: TypeAlias = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements of the clients: steps per second of all, seconds of each in rising order.

    CPU time of a step, in seconds: `cpu` is that of all processes, `generator` that of this
    process.
    """

    rate: float
    seconds: tuple[float, ...]
    cpu: float
    generator: float

    def quantile(self, part: float) -> float:
        """The seconds within which this part of the steps was answered."""
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * part))]


async def load(
    clients: Sequence[Step], seconds: float, time: ProcessorTime, pause: float = 0.0
) -> Load:
    """Have each of `clients` step for so many seconds, with `pause` seconds before each step.

    The rate counts steps that were answered within that time. A client's first step is not among
    the seconds, as far as it made more: all begin at once, and the first ones wait less in line.
    """
    cpu, own, start = time.now(), process_time(), perf_counter()
    answered = await asyncio.gather(*(_until(start + seconds, step, pause) for step in clients))
    cpu, own = time.now() - cpu, process_time() - own
    in_time = sum(then <= start + seconds for each in answered for then, _ in each)
    later = [taken for each in answered for _, taken in each[1:] or each]
    count = sum(map(len, answered))
    return Load(in_time / seconds, tuple(sorted(later)), cpu / count, own / count)


async def _until(end: float, step: Step, pause: float) -> list[tuple[float, float]]:
    """The time at which each step was answered, and the seconds that it took."""
    answered: list[tuple[float, float]] = []
    now = perf_counter()
    while now < end:
        if pause:
            await asyncio.sleep(pause)
            now = perf_counter()
        await step()
        before, now = now, perf_counter()
        answered.append((now, now - before))
    return answered
