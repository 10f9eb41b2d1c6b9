"""Spending of a tree in whole numbers, and what its limits leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from repl_env.common.display import set_module
from repl_env.errors import BudgetExceeded
from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget import PICODOLLARS, Budget, Spent, TokenRate, TokenRates, in_units

# `UsageTotals`: spending in whole numbers, and the plausibility of reports.

NANOSECONDS = 10**9
# No answer has a billion tokens or costs a million dollars. A larger report is an error of the
# endpoint, and would end the tree needlessly.
_MAX_TOKENS = 10**9
_MAX_USD = 10**6


@dataclass(slots=True)
class UsageTotals:
    """`Spent` in integers: money in picodollars, CPU time in nanoseconds. Sums are exact."""

    calls: int = 0
    failed_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0
    picodollars: int = 0
    unpriced_calls: int = 0
    cpu_nanoseconds: int = 0
    children: int = 0

    def add(self, other: UsageTotals, sign: int = 1) -> None:
        """Add `other`, or subtract it if `sign` is -1."""
        # No calls here: the garbage collector, which may run between calls, may end a reservation.
        self.calls += sign * other.calls
        self.failed_calls += sign * other.failed_calls
        self.input_tokens += sign * other.input_tokens
        self.output_tokens += sign * other.output_tokens
        self.estimated_tokens += sign * other.estimated_tokens
        self.picodollars += sign * other.picodollars
        self.unpriced_calls += sign * other.unpriced_calls
        self.cpu_nanoseconds += sign * other.cpu_nanoseconds
        self.children += sign * other.children

    @classmethod
    def of(cls, spent: Spent) -> UsageTotals:
        """Return `spent` as integers, exactly as its floats."""
        return cls(
            calls=spent.calls,
            failed_calls=spent.failed_calls,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            estimated_tokens=spent.estimated_tokens,
            picodollars=round(spent.usd * PICODOLLARS),
            unpriced_calls=spent.unpriced_calls,
            cpu_nanoseconds=round(spent.cpu_seconds * NANOSECONDS),
            children=spent.children,
        )

    @classmethod
    def between(cls, before: Spent, now: Spent) -> Spent:
        """Return the spending since `before`."""
        totals = cls.of(now)
        totals.add(cls.of(before), -1)
        return totals.spent()

    def spent(self) -> Spent:
        """The totals for users; dollars and seconds are the floats next to the exact sums."""
        return Spent(
            calls=self.calls,
            failed_calls=self.failed_calls,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            estimated_tokens=self.estimated_tokens,
            usd=self.picodollars / PICODOLLARS,
            unpriced_calls=self.unpriced_calls,
            cpu_seconds=self.cpu_nanoseconds / NANOSECONDS,
            children=self.children,
        )


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class UsageTally:
    """All accounts from one downwards, at one moment: `total` is `own` plus the totals below."""

    own: Spent
    total: Spent
    children: tuple[UsageTally, ...]


def of_answer(
    usage: ModelUsage, *, input_estimate: int, output_estimate: int, rate: TokenRate | None
) -> UsageTotals:
    """Return the cost of an answer: as reported, or as estimated for implausible reports.

    Without a `rate` the endpoint's own price counts, and without that the call has none.
    """
    totals = UsageTotals(calls=1, input_tokens=input_estimate, output_tokens=output_estimate)
    if is_count(usage.input_tokens):
        totals.input_tokens = usage.input_tokens
    else:
        totals.estimated_tokens += input_estimate
    if is_count(usage.output_tokens):
        totals.output_tokens = usage.output_tokens
    else:
        totals.estimated_tokens += output_estimate
    if rate is not None:
        totals.picodollars = rate.cost(totals.input_tokens, totals.output_tokens)
    elif _is_money(usage.usd):
        totals.picodollars = in_units(usage.usd, PICODOLLARS)
    else:
        totals.unpriced_calls = 1
    return totals


def is_count(report: object) -> TypeGuard[int]:
    """Return whether an endpoint's value is a plausible number of tokens."""
    return isinstance(report, int) and not isinstance(report, bool) and 0 <= report <= _MAX_TOKENS


def _is_money(report: object) -> TypeGuard[float]:
    if isinstance(report, bool) or not isinstance(report, (int, float)):
        return False
    return 0 <= report <= _MAX_USD


# `RemainingBudget`: a tree's limits, its spending and reservations, and the rest.
#
# No waiting and no threads here: the ledger calls this with its lock held. All amounts are
# integers in the units of `_UNITS`.

# Descriptions of fields for the model, in the units of the budget.
_PHRASES = {
    "calls": "{used:,} of {limit:,} calls are used",
    "input_tokens": "{used:,} of {limit:,} input tokens are used",
    "output_tokens": "{used:,} of {limit:,} output tokens are used",
    "usd": "${used:.4g} of ${limit:.4g} are spent",
    "seconds": "{used:.0f} of {limit:g} seconds have passed",
    "cpu_seconds": "{used:.3g} of {limit:g} seconds of CPU time are used",
    "children": "{used:,} of {limit:,} child runs were started",
}
# Money and time are counted in smaller units internally.
_UNITS = {"usd": PICODOLLARS, "seconds": NANOSECONDS, "cpu_seconds": NANOSECONDS}
_CLOCKS = ("seconds", "cpu_seconds")
# Without one of these no request can be made; without children, a run continues alone.
_NEEDED = (*_CLOCKS, "calls", "input_tokens", "output_tokens", "usd")


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """The remaining budget of a tree, less the reservations. None: no limit. Never below 0."""

    calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    usd: float | None
    seconds: float | None
    cpu_seconds: float | None
    children: int | None


@dataclass(frozen=True, slots=True)
class BudgetDemand:
    """The most that one call to a model may take. `output_tokens` None: as much as there is."""

    model: str | None
    rate: TokenRate | None
    input_tokens: int
    output_tokens: int | None


class RemainingBudget:
    """`spent` and `reserved`: the spending and the reservations of the tree.

    Args:
        elapsed: seconds since the tree began.
    """

    def __init__(
        self, budget: Budget, rates: TokenRates, spent: UsageTotals, elapsed: Callable[[], float]
    ) -> None:
        self.rates = rates
        self.reserved = UsageTotals()
        self._spent = spent
        self._elapsed = elapsed
        self._limits = {
            field: in_units(limit, _UNITS[field]) if field in _UNITS else int(limit)
            for field in _PHRASES
            if (limit := getattr(budget, field)) is not None
        }

    def grant(self, demand: BudgetDemand, reserved: UsageTotals) -> int | None:
        """Return the output tokens for `demand` while `reserved` is reserved; None: no limit.

        Raises:
            BudgetExceeded: it does not fit.
        """
        self.check(_CLOCKS)
        # A reserved call is as good as spent, for failed ones count: so waiting does not help.
        if (calls := self._free("calls", self.reserved)) is not None and calls < 1:
            raise self._exceeded("calls")
        free = self._free("input_tokens", reserved)
        if free is not None and free < demand.input_tokens:
            demand_text = f"{demand.input_tokens:,} input tokens"
            raise self._exceeded("input_tokens", f"; the next call would reserve {demand_text}")
        output = self._free("output_tokens", reserved)
        if output is not None and output < 1:
            raise self._exceeded("output_tokens")
        bounds = (demand.output_tokens, output, self._affordable(demand, reserved))
        return min((bound for bound in bounds if bound is not None), default=None)

    def reserve(self, demand: BudgetDemand, granted: int | None) -> UsageTotals:
        """Reserve the most that `demand` may take, and return it."""
        output = granted or 0
        money = 0
        if "usd" in self._limits and demand.rate is not None:
            money = demand.rate.cost(demand.input_tokens, output)
        reserved = UsageTotals(
            calls=1, input_tokens=demand.input_tokens, output_tokens=output, picodollars=money
        )
        self.reserved.add(reserved)
        return reserved

    def check(self, fields: tuple[str, ...] = _NEEDED) -> None:
        """Raise BudgetExceeded if one of `fields` is spent."""
        for field in fields:
            free = self._free(field, _NOTHING)
            if free is not None and free <= 0 and not (field == "usd" and self._may_be_free()):
                raise self._exceeded(field)

    def child(self) -> None:
        """Raise BudgetExceeded if no child may begin, or if it could not ask its model anything."""
        self.check()
        if self._free("calls", self.reserved) == 0:
            raise self._exceeded("calls")
        if self._free("children", _NOTHING) == 0:
            raise self._exceeded("children")

    def left(self) -> BudgetLeft:
        """Return the free amounts."""
        return BudgetLeft(**{field: self._left(field) for field in _PHRASES})  # type: ignore[arg-type]

    def seconds_left(self) -> float | None:
        """Return the free time alone, which each request to a model needs."""
        return self._left("seconds")

    def nearly_used(self, percent: int) -> dict[str, str]:
        """Return a phrase for each field of which this share is spent. None for a limit of 0."""
        return {
            field: self._phrase(field)
            for field, limit in self._limits.items()
            if limit and self._used(field) * 100 >= limit * percent
        }

    def _affordable(self, demand: BudgetDemand, reserved: UsageTotals) -> int | None:
        free = self._free("usd", reserved)
        if free is None:
            return None
        if demand.rate is None:
            raise BudgetExceeded("usd", _unpriced(demand.model), unpriced=demand.model)
        free -= demand.rate.cost(demand.input_tokens, 0)
        if free < demand.rate.output or free < 0:
            least = demand.rate.cost(demand.input_tokens, 1) / PICODOLLARS
            what = f"{demand.input_tokens:,} input tokens and one output token"
            raise self._exceeded("usd", f"; the next call would reserve ${least:.4g} for {what}")
        return free // demand.rate.output if demand.rate.output else None

    def _may_be_free(self) -> bool:
        over = self._free("usd", _NOTHING)
        return over == 0 and self.rates.any_free

    def _free(self, field: str, reserved: UsageTotals) -> int | None:
        limit = self._limits.get(field)
        return None if limit is None else limit - self._used(field) - _amount(reserved, field)

    def _used(self, field: str) -> int:
        if field == "seconds":
            return int(self._elapsed() * NANOSECONDS)
        return _amount(self._spent, field)

    def _left(self, field: str) -> float | None:
        free, unit = self._free(field, self.reserved), _UNITS.get(field)
        if free is None:
            return None
        return max(free, 0) / unit if unit else max(free, 0)

    def _phrase(self, field: str) -> str:
        used, limit, unit = self._used(field), self._limits[field], _UNITS.get(field)
        if unit is None:
            return _PHRASES[field].format(used=used, limit=limit)
        return _PHRASES[field].format(used=used / unit, limit=limit / unit)

    def _exceeded(self, field: str, reason: str = "") -> BudgetExceeded:
        reserved = ", the rest is reserved" if _amount(self.reserved, field) and not reason else ""
        return BudgetExceeded(field, f"budget: {self._phrase(field)}{reason or reserved}")


_NOTHING = UsageTotals()
_NAMES = {
    "usd": "picodollars",
    "cpu_seconds": "cpu_nanoseconds",
}


def _amount(totals: UsageTotals, field: str) -> int:
    if field == "seconds":  # passes by itself: no reservation holds it
        return 0
    amount: int = getattr(totals, _NAMES.get(field, field))
    return amount


def _unpriced(model: str | None) -> str:
    if model is None:
        return (
            "budget: the model has no name and so no price, and a limit in dollars needs one: "
            "give the model a name, and its price by that name"
        )
    return (
        f"budget: the price of model {model!r} is unknown, and a limit in dollars needs it: give "
        f"prices={{{model!r}: Price(input=..., output=...)}}, in dollars for a million tokens"
    )
