"""One figure of the benchmarks.

A floor is the least that the kernel and the interpreter allow on this machine, measured in turn
with ours in the same run, so that other work on the machine hits both. Only ratios travel from
one machine to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import sub, truediv
from typing import TypeAlias

from repl_sandbox import Limits

from .samples import Samples

# A session that is measured again and again must not meet the limits of a session that is not.
ROOMY = Limits(memory="4GiB", output="4GiB", timeout=120.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing, ours and its floor: seconds, bytes or 1/s. `unit` is for showing it.

    Samples of ours and of the floor that are as many are of the same rounds, in order.
    """

    key: str
    name: str
    unit: str
    ours: Samples
    floor: Samples
    floor_is: str

    @property
    def ratio(self) -> Samples:
        """Ours to the floor, round by round."""
        return self.ours.per_round(self.floor, truediv)

    @property
    def difference(self) -> Samples:
        """Ours minus the floor, round by round."""
        return self.ours.per_round(self.floor, sub)


Measure: TypeAlias = Callable[[], Iterable[Figure]]
