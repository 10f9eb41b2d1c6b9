"""The budget of a tree of runs, and its spending."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from repl_env.common.argument_checks import at_least, finite
from repl_env.common.set_module import set_module


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run together with all runs below it. None means no limit.

    Args:
        calls: requests to models: turns of the runs, and sub-calls; failed ones count.
        input_tokens, output_tokens: of all calls. Without counts of the endpoint, an upper bound is
            taken from the text.
        usd: cost of all calls. A call of unknown price is refused, not free.
        seconds: of wall time, from the start of the root run.
        cpu_seconds: of the sessions' processes.
        children: runs below the root, including ended ones.

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
            if value is not None:
                object.__setattr__(self, field.name, _limit(field.name, value))


_COUNTS = frozenset({"calls", "input_tokens", "output_tokens", "children"})


def _limit(field: str, value: Any) -> float:
    """Return `value` as that limit; TypeError or ValueError naming it if it is invalid."""
    name = f"budget.{field}"
    if field in _COUNTS:
        return at_least(value, 0, name)
    number = finite(value, name)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, not {value}")
    return number


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, in US dollars for a million tokens."""

    input: float
    output: float


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class Spent:
    """The spending of a run, or of a run with all below it.

    `estimated_tokens` are token counts that no endpoint reported. `unpriced_calls` are calls of
    unknown
    price; they are not in `usd`.
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
