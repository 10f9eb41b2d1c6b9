"""`Reservation`: what is set aside for one call to a model."""

from __future__ import annotations

from collections.abc import Callable

from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget.prices import TokenRate, TokenRates
from repl_env.rlm.budget.usage_totals import UsageTotals, of_answer


class Reservation:
    """What is set aside for one call. It ends once, by `settle` or `fail`; a second does nothing.

    As a context manager it fails when it is left without.

    Attributes:
        output_tokens: what the answer may have at most, at least 1; None: no limit.
        held: all that is set aside.
    """

    def __init__(
        self,
        output_tokens: int | None,
        held: UsageTotals,
        rate: TokenRate | None,
        rates: TokenRates,
        end: Callable[[Reservation, UsageTotals], None],
    ) -> None:
        self.output_tokens = output_tokens
        self.held = held
        self._rate = rate
        self._rates = rates
        self._end = end

    def settle(
        self,
        usage: ModelUsage,
        *,
        input_estimate: int,
        output_estimate: int,
        price_model: str | None = None,
    ) -> None:
        """The call was answered: spend what it took.

        Args:
            usage: as reported, and believed: more than was reserved is spent as well, and less
                too. Numbers that cannot be (negative, no ints, beyond a billion) are no report.
            input_estimate, output_estimate: for what is not reported.
            price_model: the model that answered, if it is not the one that was asked. If its price
                is unknown, that of the one asked counts.
        """
        rate = self._rates.of(price_model) or self._rate
        spent = of_answer(
            usage, input_estimate=input_estimate, output_estimate=output_estimate, rate=rate
        )
        self._end(self, spent)

    def fail(self, usage: ModelUsage | None = None) -> None:
        """The call was made and gave nothing: it counts, and of tokens what `usage` reports."""
        spent = UsageTotals(calls=1)
        if usage is not None and usage != ModelUsage():  # else its price is not unknown, but none
            spent = of_answer(usage, input_estimate=0, output_estimate=0, rate=self._rate)
        spent.failed_calls = 1
        self._end(self, spent)

    def drop(self) -> None:
        """The call was never made: nothing was spent."""
        self._end(self, UsageTotals())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.fail()
