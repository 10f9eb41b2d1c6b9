"""Build the solver of `repl-env eval` from its options."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from ..option_values.function_references import named
from .model_options import ModelOptions, address_of, digest_of
from .run_options import RunOptions

if TYPE_CHECKING:
    from repl_env.evaluation.metrics import Metric
    from repl_env.evaluation.solvers import Solver

# Options of `repl-env eval` that are not about a model and its runs.
_OF_ANY_SOLVER = frozenset(
    (
        "dataset rubric concurrency solver out fresh limit give_up_after as_json html max_size "
        "config"
    ).split()
)


def check_choice(
    model: str | None, solver: str | None, context: typer.Context
) -> tuple[str | None, str | None]:
    """Return the one of the two that is given, beside None.

    One on the command line comes before one of the configuration file.

    Raises:
        typer.BadParameter: neither is given, or both; or with a solver an option that would change
            nothing.
    """
    if model is not None and solver is not None:
        given = [_is_on_command_line(context, name) for name in ("model", "solver")]
        if given == [True, False]:
            solver = None
        elif given == [False, True]:
            model = None
    if (model is None) == (solver is None):
        both = "" if model is None else ", not both"
        raise typer.BadParameter(f"give --model or --solver{both}")
    if solver is None:
        return model, None
    for option in context.command.params:
        name = option.name or ""
        if name not in _OF_ANY_SOLVER and _is_on_command_line(context, name):
            message = "goes with --model; a solver is called with the task, and no more"
            raise typer.BadParameter(message, param_hint=option.opts[0])
    return None, solver


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    # By name: some versions of typer have a click of their own, whose values are others.
    return source is not None and source.name == "COMMANDLINE"


def rlm_solver(
    model: ModelOptions, runs: RunOptions, trajectories: Path | None = None
) -> tuple[Solver, dict[str, Any]]:
    """Return a recursive language model as a solver, and the settings that its results depend on.

    `trajectories` is a folder for those of the runs.

    Raises:
        typer.BadParameter, typer.Exit: as `RunOptions.arguments`.
    """
    from repl_env.evaluation.solvers import RLMSolver

    options = runs.arguments(model)
    # The tier is not among the settings, because it does not change an answer.
    settings = {
        **runs.bounds,
        "model": model.model,
        "sub_model": runs.sub_model,
        "base_url": _without_secrets(address_of(model)),
        "source": digest_of(model.model),
        "sub_source": digest_of(runs.sub_model),
        "budget": asdict(options["budget"]),
        "prices": {name: asdict(price) for name, price in options["prices"].items()},
        "preload": list(options["preload"]),
        "limits": asdict(options["limits"]),
    }
    return RLMSolver(options.pop("model"), options, trajectories), settings


def function_solver(reference: str) -> tuple[Solver, dict[str, Any]]:
    """Return the function that `reference` names as a solver, and the settings of its results."""
    from repl_env.evaluation.solvers import FunctionSolver

    found = named(reference, "--solver")
    return FunctionSolver(found.function), {"solver": reference, "source": found.digest}


def metric_of(rubric: str | None) -> tuple[Metric | None, dict[str, Any]]:
    """Return the metric of all tasks, None for that of each task, and the settings of scores."""
    from repl_env.evaluation import metrics

    if rubric is None or rubric in metrics.RUBRICS:
        return metrics.RUBRICS[rubric] if rubric else None, {"rubric": rubric}
    if ":" not in rubric:
        message = f"{rubric!r} is none of {', '.join(metrics.RUBRICS)}, and no module:function"
        raise typer.BadParameter(message, param_hint="'--rubric'")
    found = named(rubric, "--rubric")
    return metrics.metric_of(found.function), {"rubric": rubric, "rubric_source": found.digest}


def _without_secrets(url: str | None) -> str | None:
    """Return `url` without user, password and query, because results are published."""
    if url is None:
        return None
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
