"""How runs of a model work, said by options: `run` and `eval` share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .budget_options import check_price
from .help_groups import MODEL, TURNS
from .model_options import ModelOptions, model_from

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_sandbox import Limits


class Blocks(StrEnum):
    """Which of a reply's code blocks are run."""

    ALL = "all"
    FIRST = "first"
    UNTIL_DONE = "until_done"
    UNTIL_ERROR = "until_error"


SubModel: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sub-model",
        metavar="MODEL",
        help="Model that answers sub-calls.",
        show_default="--model",
        rich_help_panel=MODEL,
    ),
]
MaxDepth: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-depth",
        min=1,
        help="Maximum levels of runs; 1 allows no child runs.",
        rich_help_panel=TURNS,
    ),
]
MaxIterations: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-iterations",
        min=1,
        help="Maximum turns of a run, before a last one for the answer.",
        rich_help_panel=TURNS,
    ),
]
BlocksOption: TypeAlias = Annotated[
    Blocks,
    typer.Option(
        "--blocks",
        metavar="WHICH",
        help="Code blocks of a reply that are run.",
        rich_help_panel=TURNS,
    ),
]


def limits_of_runs(**given: Any) -> Limits:
    """The limits of sessions in which runs work; calls of theirs may take as long as runs may.

    Raises:
        TypeError, ValueError: naming the field.
    """
    from repl_env.rlm.rlm_runner import HOST_TIMEOUT
    from repl_sandbox import Limits

    return Limits(**given, host_timeout=HOST_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Runs as options say how they work."""

    model: ModelOptions
    sub_model: str | None
    budget: Budget
    prices: Mapping[str, Price]
    max_iterations: int
    max_depth: int
    blocks: str
    isolation: str
    require: str | None
    image: str | None
    runtime: str | None = None
    preload: tuple[str, ...]
    limits: Limits

    @property
    def bounds(self) -> dict[str, Any]:
        """How far each run may go."""
        return {
            "max_iterations": self.max_iterations,
            "max_depth": self.max_depth,
            "blocks": self.blocks,
        }

    def arguments(self) -> dict[str, Any]:
        """Those of `RLM`, with models that are made now and the caller's to close.

        Raises:
            typer.BadParameter, typer.Exit: as `model_from`; a budget in dollars lacks a price.
        """
        arguments: dict[str, Any] = {
            **self.bounds,
            "budget": self.budget,
            "prices": self.prices,
            "isolation": self.isolation,
            "require": self.require,
            "image": self.image,
            "runtime": self.runtime,
            "preload": self.preload,
            "limits": self.limits,
            "model": model_from(self.model),
        }
        if self.sub_model is not None:
            other = replace(self.model, model=self.sub_model)
            arguments["sub_model"] = model_from(other, "--sub-model")
        for name in ("model", "sub_model"):
            if name in arguments:
                check_price(self.budget, self.prices, arguments[name].name)
        return arguments
