"""`repl-env tasks check`: the scores of a task beside its documented ones."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repl_env.cli.exit_status import ExitStatus
from repl_env.cli.options.output_options import AsJSON

from .task_arguments import failures_reported, tasks_of

if TYPE_CHECKING:
    from repl_env.tasks import Evaluator, SubmissionEvaluation

_CLOSE = 1e-4  # of the scale between baseline and reference


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Shipped tasks, or folders; without any, all that are shipped."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Compare the scores of each task's baseline and solution with the documented ones."""
    from repl_env.tasks import Evaluator

    results: list[dict[str, Any]] = []
    for task in _found(names):
        typer.echo(f"{task.name}: evaluating baseline and solution", err=True)
        with failures_reported():
            found = _checked(Evaluator(task))
        results += found
        if not as_json:
            typer.echo("\n".join(map(_line, found)))
    if as_json:
        typer.echo(json.dumps(results))
    if not all(each["ok"] for each in results):
        raise typer.Exit(ExitStatus.FAILED)


def _line(found: dict[str, Any]) -> str:
    mark = "ok" if found["ok"] else "WRONG"
    verdict = found["failure"] or f"{found['score']:.6g}, documented {found['documented']:g}"
    return f"{mark:5} {found['task']} {found['which']}: {verdict}"


def _found(names: list[str] | None) -> list[Any]:
    with failures_reported():
        return tasks_of(names or [])


def _checked(evaluator: Evaluator) -> list[dict[str, Any]]:
    task = evaluator.task
    baseline = evaluator.evaluate(task.baseline_files())
    solution = evaluator.evaluate(task.solution_files())
    scale = abs(task.reference - task.baseline)
    return [
        _compared("baseline", baseline, task.baseline, scale),
        _compared("solution", solution, task.reference, scale),
    ]


def _compared(
    which: str, found: SubmissionEvaluation, documented: float, scale: float
) -> dict[str, Any]:
    ok = found.score is not None and math.isclose(
        found.score, documented, rel_tol=0.0, abs_tol=_CLOSE * scale
    )
    failure = f"{found.failure}: {found.message}" if found.failure else None
    return {
        "task": found.task,
        "which": which,
        "score": found.score,
        "documented": documented,
        "failure": failure,
        "ok": ok,
    }
