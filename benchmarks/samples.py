"""Samples of a duration, taken in turn with those it is compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

Timed = Callable[[], float]
# Samples from which quartiles say something.
_SPREAD_FROM = 4


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured values of one thing, in the order taken."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value: on a machine with other work, the mean measures that work."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and the upper quartile, or None if there are too few values."""
        if len(self.values) < _SPREAD_FROM:
            return None
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def per_round(self, other: Samples, of: Callable[[float, float], float]) -> Samples:
        """`of(ours, other's)` for each round.

        A machine whose speed swings has both of a round on the same swing, so that what they make
        together scatters less than either. Of samples that were not taken in the same rounds it is
        that of the medians.
        """
        if len(self.values) != len(other.values):
            return Samples((of(self.median, other.median),))
        return Samples(tuple(of(*both) for both in zip(self.values, other.values, strict=True)))

    @property
    def least(self) -> float:
        """The least disturbed value."""
        return min(self.values)


def interleave(tasks: Mapping[str, Timed], rounds: int, warm_up: int = 2) -> dict[str, Samples]:
    """Call each task once per round, so that all of them meet the same state of the machine.

    A task returns its own seconds, and can so prepare and clear away outside its clock. The order
    is turned round every other round, as a task may leave the caches warm for the next.
    """
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(-warm_up, rounds):
        order = list(tasks) if number % 2 else list(tasks)[::-1]
        for name in order:
            seconds = tasks[name]()
            if number >= 0:
                taken[name].append(seconds)
    return {name: Samples(tuple(values)) for name, values in taken.items()}


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    start = perf_counter()
    action()
    return perf_counter() - start
