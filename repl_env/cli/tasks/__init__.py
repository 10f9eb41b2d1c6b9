"""`repl-env tasks`: the tasks that are shipped or in folders, evaluated and checked."""

from __future__ import annotations

import typer

from .check_task import check
from .list_tasks import list_tasks
from .run_task import run

tasks = typer.Typer(help="List tasks, evaluate submissions, check tasks.", no_args_is_help=True)
tasks.command("list")(list_tasks)
tasks.command("run")(run)
tasks.command("check")(check)
