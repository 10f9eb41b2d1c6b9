"""What a tree of runs may spend, and what it has spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend together with all runs below it. None is no limit.

    Args:
        calls: questions to models: turns of the runs, and sub-calls; failed ones count.
        input_tokens, output_tokens: of all calls. Where an endpoint does not count, an upper
            bound is taken from the text.
        usd: cost of all calls. A call whose price nobody knows is refused, not taken for free.
        seconds: of wall time, from the start of the root run.
        cpu_seconds: of the sessions' processes.
        children: runs below the root, ended ones too.

    Raises:
        TypeError, ValueError: naming the field.
    """

    calls: int | None = 200
    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    children: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            counts = field.name in _COUNTS
            kinds = int if counts else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds):
                wanted = "an int" if counts else "a number"
                raise TypeError(f"budget.{field.name} must be {wanted}, not {type(value).__name__}")
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"budget.{field.name} must be at least 0, not {value}")


_COUNTS = frozenset({"calls", "input_tokens", "output_tokens", "children"})


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in US dollars for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run, or a run with all below it, has spent.

    `estimated_tokens` are those of the token counts that no endpoint reported. `unpriced_calls` are
    calls whose price is unknown; they are not in `usd`.
    """

    calls: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    usd: float = 0.0
    unpriced_calls: int = 0
    cpu_seconds: float = 0.0
    children: int = 0

    @property
    def cost(self) -> float | None:
        """US dollars; None if the price of a call is unknown."""
        return None if self.unpriced_calls else self.usd
