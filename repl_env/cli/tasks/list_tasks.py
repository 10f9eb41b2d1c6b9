"""`repl-env tasks list`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from repl_env.cli.options.output_options import AsJSON

from .task_arguments import failures_reported, tasks_of


def list_tasks(
    folders: Annotated[
        list[str] | None, typer.Argument(help="Folders of tasks; without any, the shipped ones.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """List tasks with metric, scores, split, difficulty and group."""
    with failures_reported():
        found = tasks_of(folders or [])
    if as_json:
        scores = [{"baseline": each.baseline, "reference": each.reference} for each in found]
        typer.echo(json.dumps([each.facts | its for each, its in zip(found, scores, strict=True)]))
        return
    from rich.console import Console

    from repl_env.cli.render.fitted_table import FittedTable, Heading

    scores_of = (Heading("baseline", "right"), Heading("reference", "right"))
    table = FittedTable("task", "metric", *scores_of, "split", "difficulty", "group")
    for task in found:
        facts = (
            task.name,
            f"{task.metric} ({task.direction})",
            f"{task.baseline:.6g}",
            f"{task.reference:.6g}",
        )
        table.add_row(*map(str, (*facts, task.split, task.difficulty or "-", task.group or "-")))
    Console().print(table)
