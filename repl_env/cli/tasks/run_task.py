"""`repl-env tasks run`: the evaluation of a submission."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repl_env.cli.exit_status import ExitStatus
from repl_env.cli.options.output_options import AsJSON

from .task_arguments import failures_reported

if TYPE_CHECKING:
    from repl_env.tasks import Task


def run(
    task: Annotated[str, typer.Argument(help="A shipped task's name, or a task's directory.")],
    submission: Annotated[
        Path | None,
        typer.Argument(help="The folder with the submission's files; by default the baseline."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Evaluate a submission, and print its score. Exit status 1: the submission failed."""
    from repl_env.tasks import evaluate, load

    with failures_reported():
        found = load(task)
        files = found.baseline_files() if submission is None else _files(found, submission)
        what = "the baseline" if submission is None else str(submission)
        typer.echo(f"{found.name}: evaluating {what}", err=True)
        result = evaluate(found, files)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    elif result.ok:
        typer.echo(f"{found.name}: {result.metric} {result.score:.6g} (gain {result.gain:.3f})")
    else:
        typer.echo(f"{found.name}: failed ({result.failure}): {result.message}")
    if not result.ok:
        raise typer.Exit(ExitStatus.FAILED)


def _files(task: Task, folder: Path) -> dict[str, bytes]:
    from repl_env.tasks.submission import MAX_FILE

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="'SUBMISSION'")
    found: dict[str, bytes] = {}
    for path in task.submission:
        if (folder / path).is_file():
            with (folder / path).open("rb") as file:
                found[path] = file.read(MAX_FILE + 1)  # a longer one fails as it is
    return found
