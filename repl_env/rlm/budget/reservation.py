"""`Reservation`: amounts reserved for one call to a model."""

from __future__ import annotations

from collections.abc import Callable

from repl_env.common.set_module import set_module
from repl_env.llm.base import ModelUsage
from repl_env.rlm.budget.prices import TokenRate, TokenRates
from repl_env.rlm.budget.usage_totals import UsageTotals, of_answer


@set_module("repl_env.rlm")
class Reservation:
    """Amounts reserved for one call. It ends once, by `settle` or `fail`; a second does nothing.

    As a context manager it fails if the block leaves it open.

    Attributes:
        output_tokens: the limit of the answer, at least 1; None: no limit.
        reserved: all reserved amounts.
    """

    def __init__(
        self,
        output_tokens: int | None,
        reserved: UsageTotals,
        rate: TokenRate | None,
        rates: TokenRates,
        end: Callable[[Reservation, UsageTotals], None],
    ) -> None:
        self.output_tokens = output_tokens
        self.reserved = reserved
        self._rate = rate
        self._rates = rates
        self._finish = end

    def settle(
        self,
        usage: ModelUsage,
        *,
        input_estimate: int,
        output_estimate: int,
        price_model: str | None = None,
    ) -> None:
        """Spend the cost of an answered call.

        Args:
            usage: as reported, and trusted, even if it exceeds the reservation. Impossible numbers
                (negative, not ints, beyond a billion) count as not reported.
            input_estimate, output_estimate: for counts that are not reported.
            price_model: the model that answered, if it is not the requested one. If its price is
                unknown, the requested model's price counts.
        """
        rate = self._rates.of(price_model) or self._rate
        spent = of_answer(
            usage, input_estimate=input_estimate, output_estimate=output_estimate, rate=rate
        )
        self._finish(self, spent)

    def fail(self, usage: ModelUsage | None = None) -> None:
        """End a call that failed: it counts, with the tokens in `usage`."""
        spent = UsageTotals(calls=1)
        # otherwise its price is not unknown, but zero
        if usage is not None and usage != ModelUsage():
            spent = of_answer(usage, input_estimate=0, output_estimate=0, rate=self._rate)
        spent.failed_calls = 1
        self._finish(self, spent)

    def drop(self) -> None:
        """End a call that was never made: nothing was spent."""
        self._finish(self, UsageTotals())

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.fail()
