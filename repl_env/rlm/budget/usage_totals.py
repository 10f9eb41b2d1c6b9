"""`UsageTotals`: spending in whole numbers, and the plausibility of reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from repl_env.common.set_module import set_module
from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.budget.prices import PICODOLLARS, TokenRate, in_units

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
