"""The options of runs of a model, which `run` and `eval` share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .budget_options import BudgetOptions, check_price
from .help_groups import MODEL, TURNS
from .limit_options import LimitOptions
from .model_options import ModelOptions, model_from
from .session_options import SessionOptions

if TYPE_CHECKING:
    from repl_sandbox import Limits


class Blocks(StrEnum):
    """The code blocks of a reply that are run."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of runs beside their model."""

    sub_model: SubModel = None
    max_depth: MaxDepth = 2
    max_iterations: MaxIterations = 30
    blocks: BlocksOption = Blocks.ALL
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)

    @property
    def bounds(self) -> dict[str, Any]:
        """The arguments of `RLM` that bound each run."""
        return {
            "max_iterations": self.max_iterations,
            "max_depth": self.max_depth,
            "blocks": self.blocks.value,
        }

    def session_limits(self) -> Limits:
        """Return the limits of sessions, whose calls of the host may take as long as a run.

        Raises:
            typer.BadParameter: naming the field.
        """
        from repl_env.rlm.rlm_runner import HOST_TIMEOUT

        return self.limits.limits(host_timeout=HOST_TIMEOUT)

    def arguments(self, model: ModelOptions) -> dict[str, Any]:
        """Return the arguments of `RLM`, with new models, which the caller closes.

        Raises:
            typer.BadParameter, typer.Exit: as `model_from`; an option has a wrong value; a budget
                in dollars lacks a price.
        """
        arguments: dict[str, Any] = {
            **self.bounds,
            "budget": self.budget.budget(),
            "prices": self.budget.prices(),
            **self.session.arguments(),
            "limits": self.session_limits(),
            "model": model_from(model),
        }
        if self.sub_model is not None:
            other = replace(model, model=self.sub_model)
            arguments["sub_model"] = model_from(other, "--sub-model")
        for name in ("model", "sub_model"):
            if name in arguments:
                check_price(arguments["budget"], arguments["prices"], arguments[name].name)
        return arguments
