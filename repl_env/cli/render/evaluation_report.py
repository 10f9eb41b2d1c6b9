"""The report at the end of an evaluation, and its exit status."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ..exit_status import ExitStatus

if TYPE_CHECKING:
    from repl_env.evaluation import Evaluation, ResultsFile, Summary


def report(
    evaluation: Evaluation, status: ExitStatus, out: Path | None, as_json: bool
) -> ExitStatus:
    """Print what there is; the exit status."""
    from repl_env.evaluation import summarize

    from .summary_table import show

    summary = summarize(evaluation)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=2))
    else:
        show(Console(), summary)
    if status is ExitStatus.OK:
        status = _verdict(summary)
    if summary.scored < summary.tasks:
        typer.echo(_what_next(summary, out), err=True)
    return status


def taken_over(evaluation: Evaluation, results: ResultsFile) -> str:
    """Return how many results of an earlier call this one takes over."""
    tasks, missing = len(evaluation.dataset.entries), len(evaluation.missing)
    to_run = f"{missing} {'task' if missing == 1 else 'tasks'} to run."
    if not evaluation.done:
        return f"{results.path} has no result of these tasks with these settings; {to_run}"
    return f"{results.path} has results of {tasks - missing} of {tasks} tasks; {to_run}"


def _verdict(summary: Summary) -> ExitStatus:
    from repl_env.errors import INFRASTRUCTURE_KINDS

    if summary.scored == summary.tasks:
        return ExitStatus.OK
    ours = any(failure.error_kind in INFRASTRUCTURE_KINDS for failure in summary.failures)
    return ExitStatus.INFRASTRUCTURE if ours else ExitStatus.FAILED


def _what_next(summary: Summary, out: Path | None) -> str:
    missing = summary.tasks - summary.scored
    left = f"{missing} of {summary.tasks} tasks {'has' if missing == 1 else 'have'} no score."
    if summary.gave_up:
        left = f"Too many tasks in a row failed (--give-up-after). {left}"
    if out is None:
        return f"{left} Nothing is kept; with --out FILE the same call would go on."
    return f"{left} The same call goes on from {out}."


def unwritable(error: OSError) -> ExitStatus:
    """Print why results cannot be written, and return the exit status."""
    typer.echo(f"Results cannot be written: {error.strerror or error}", err=True)
    return ExitStatus.FAILED
