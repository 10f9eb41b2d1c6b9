"""Limits of a tree of runs, and prices of tokens as integers, so that sums are exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import at_least, finite

# The budget of a tree of runs, and its spending.


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
        children: runs below the root, including ended ones. Each has a session of its own.

    Raises:
        TypeError, ValueError: naming the field.
    """

    calls: int | None = 200
    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    children: int | None = 100

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
    unknown price; they are not in `usd`.
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


# Prices of tokens as integers, so that sums of money are exact in any order.
#
# The unit is a picodollar, 1e-12 of a US dollar: $1 for a million tokens is a million picodollars
# for one token. A price with more than six decimals is rounded up to the next.

PICODOLLARS = 10**12
# A higher price is a typing error: a token would cost a thousand dollars.
_HIGHEST = 1e9


@dataclass(frozen=True, slots=True)
class TokenRate:
    """The price of one token of a model, in picodollars."""

    input: int
    output: int

    @classmethod
    def of(cls, price: Price) -> TokenRate:
        """Return `price` for one token; never less than it."""
        return cls(_for_one_token(price.input), _for_one_token(price.output))

    def cost(self, input_tokens: int, output_tokens: int) -> int:
        """Return the cost in picodollars."""
        return self.input * input_tokens + self.output * output_tokens


class TokenRates:
    """A user's prices, by the names of the models.

    Raises:
        TypeError, ValueError: naming the entry.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        if not isinstance(prices, Mapping):
            raise TypeError(f"prices must be a mapping, not {type(prices).__name__}")
        self._rates = {name: TokenRate.of(_checked(name, price)) for name, price in prices.items()}

    def of(self, model: str | None) -> TokenRate | None:
        """Return the rate of `model`; None if it is unknown."""
        return None if model is None else self._rates.get(model)

    @property
    def any_free(self) -> bool:
        """Whether a model is free, so that an empty purse ends nothing."""
        return any(not rate.input and not rate.output for rate in self._rates.values())


def in_units(number: float, unit: int) -> int:
    """Return the decimal `number` in parts of which one has `unit`, rounded down."""
    return math.floor(_exact(number) * unit)


def _for_one_token(usd_for_a_million: float) -> int:
    return math.ceil(_exact(usd_for_a_million) * PICODOLLARS / 10**6)


def _exact(number: float) -> Fraction:
    # From its digits: 0.1 is a tenth, not the binary fraction next to it.
    return Fraction(repr(float(number)))


def _checked(name: object, price: Price) -> Price:
    if not isinstance(name, str):
        raise TypeError(f"prices: {name!r} must be the name of a model, a str")
    if not isinstance(price, Price):
        message = f"prices[{name!r}] must be a Price (from repl_env.rlm import Price)"
        raise TypeError(f"{message}, not {type(price).__name__}")
    for side, value in (("input", price.input), ("output", price.output)):
        argument = f"prices[{name!r}].{side}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{argument} must be a number, not {type(value).__name__}")
        if not 0 <= value <= _HIGHEST:
            raise ValueError(f"{argument} must be from 0 to {_HIGHEST:g}, not {value}")
    return price
