"""Options for the budget of a tree of runs and the prices of its models."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from repl_env.rlm.budget.budget_limits import Budget, Price

from .help_groups import BUDGET

if TYPE_CHECKING:
    from repl_env.errors import BudgetExceeded

Calls: TypeAlias = Annotated[
    int,
    typer.Option(
        "--budget-calls",
        help="Maximum number of model calls in the whole tree.",
        rich_help_panel=BUDGET,
    ),
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--budget-tokens",
        metavar="IN[:OUT]",
        help="Maximum tokens: input, input:output, or :output.",
        rich_help_panel=BUDGET,
    ),
]
Dollars: TypeAlias = Annotated[
    float | None,
    typer.Option("--budget-usd", help="Maximum cost in US dollars.", rich_help_panel=BUDGET),
]
Seconds: TypeAlias = Annotated[
    float | None,
    typer.Option("--budget-seconds", help="Maximum wall time in seconds.", rich_help_panel=BUDGET),
]
Prices: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="MODEL=IN:OUT",
        help="Price in US dollars per million tokens; may be repeated.",
        rich_help_panel=BUDGET,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """The budget of a tree of runs, and prices."""

    budget_calls: Calls = 200
    budget_tokens: Tokens = None
    budget_usd: Dollars = None
    budget_seconds: Seconds = None
    price: Prices = None

    def budget(self) -> Budget:
        """Return the budget; typer.BadParameter names an option with a wrong value."""
        return budget_from(
            self.budget_calls, self.budget_tokens, self.budget_usd, self.budget_seconds
        )

    def prices(self) -> dict[str, Price]:
        """Return the prices by model; typer.BadParameter names a wrong one."""
        return dict(map(_price, self.price or ()))


_OPTIONS = {
    "calls": "--budget-calls",
    "input_tokens": "--budget-tokens",
    "output_tokens": "--budget-tokens",
    "usd": "--budget-usd",
    "seconds": "--budget-seconds",
}


def refusal_text(error: BudgetExceeded) -> str:
    """Return the text of `error` with the option that sets the limit."""
    if error.unpriced is not None:
        return _needs_price(error.unpriced)
    option = _OPTIONS.get(error.field)
    return f"{error} ({option} sets the limit)" if option else str(error)


def check_price(budget: Budget, prices: Mapping[str, Price], model: str | None) -> None:
    """Raise typer.BadParameter if the budget is in dollars and the model's price is unknown."""
    if budget.usd is not None and model is not None and model not in prices:
        raise typer.BadParameter(_needs_price(model))


def _needs_price(model: str) -> str:
    price = shlex.quote(f"{model}=IN:OUT")
    return (
        f"--budget-usd needs the price of model {model!r}, which is unknown: give "
        f"--price {price}, in US dollars for a million tokens in and out"
    )


def budget_from(calls: int, tokens: str | None, usd: float | None, seconds: float | None) -> Budget:
    """Return the budget of these options.

    Raises:
        typer.BadParameter: naming the field.
    """
    into, _, out = (tokens or "").partition(":")
    try:
        return Budget(
            calls=calls,
            input_tokens=_tokens(into),
            output_tokens=_tokens(out),
            usd=usd,
            seconds=seconds,
        )
    except ValueError as error:
        field, _, rest = str(error).removeprefix("budget.").partition(" ")
        value = {"calls": calls, "usd": usd, "seconds": seconds}.get(field, tokens)
        message = f"{str(value)!r} {rest.partition(', not ')[0]}"
        raise typer.BadParameter(message, param_hint=_OPTIONS.get(field)) from error


def _tokens(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a number of tokens", param_hint="--budget-tokens"
        ) from None


def _price(given: str) -> tuple[str, Price]:
    name, _, pair = given.rpartition("=")
    numbers = _numbers(pair.split(":"))
    if not name or len(numbers) != 2:
        raise typer.BadParameter(f"{given!r} must be MODEL=IN:OUT", param_hint="--price")
    return name, Price(*numbers)


def _numbers(texts: Sequence[str]) -> list[float]:
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return []
    return numbers if all(math.isfinite(one) and one >= 0 for one in numbers) else []
