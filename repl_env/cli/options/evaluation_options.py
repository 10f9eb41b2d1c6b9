"""The options of `repl-env eval` beside those of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from .help_groups import EVALUATION, MODEL, OUTPUT
from .model_options import BaseURL, KeyVariable
from .output_options import JSONOutput

Dataset: TypeAlias = Annotated[
    Path, typer.Argument(help="The dataset: one JSON object in each line (docs/evaluation.md).")
]
Rubric: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RUBRIC",
        help="Rubric: exact, fuzzy, json, list or module:function; by default the rubric that a "
        "line names, else exact.",
        rich_help_panel=EVALUATION,
    ),
]
Concurrency: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of tasks that run at once.", rich_help_panel=EVALUATION)
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="The model to evaluate, or script:FILE.py:FUNCTION; as for run.",
        rich_help_panel=MODEL,
    ),
]
Trajectories: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--trajectory",
        metavar="FOLDER",
        help="Folder for a trajectory file of each task.",
        rich_help_panel=OUTPUT,
    ),
]
SolverName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FUNCTION",
        help="module:function or FILE.py:function that answers a task, instead of a model.",
        rich_help_panel=MODEL,
    ),
]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The results file; an existing file is continued.",
        rich_help_panel=OUTPUT,
    ),
]
Fresh: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fresh/--resume", help="Discard the results file, or continue it.", rich_help_panel=OUTPUT
    ),
]
Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tasks to evaluate.", rich_help_panel=EVALUATION),
]
GiveUpAfter: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        help="Consecutive infrastructure errors that end the evaluation; 0: no limit.",
        rich_help_panel=EVALUATION,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """The tasks of an evaluation and their scores."""

    rubric: Rubric = None
    concurrency: Concurrency = 8
    limit: Limit = None
    give_up_after: GiveUpAfter = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSolver:
    """A model at an endpoint, or a function."""

    model: Model = None
    base_url: BaseURL = None
    api_key_env: KeyVariable = None
    solver: SolverName = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsOptions:
    """The files of an evaluation, and its report."""

    trajectory: Trajectories = None
    out: Out = None
    fresh: Fresh = False
    as_json: JSONOutput = False

    def make_trajectory_folder(self) -> None:
        """Make the folder of `--trajectory`; typer.BadParameter if it cannot be made."""
        if self.trajectory is None:
            return
        try:
            self.trajectory.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{self.trajectory}: {error.strerror or error}"
            raise typer.BadParameter(message, param_hint="--trajectory") from error
