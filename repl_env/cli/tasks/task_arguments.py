"""The tasks that arguments name: shipped ones by name, directories of a task or of several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from repl_env.cli.exit_status import ExitStatus

if TYPE_CHECKING:
    from repl_env.tasks import Task


def tasks_of(names: list[str]) -> list[Task]:
    """Return the tasks of these names and folders; without any, all shipped tasks."""
    from repl_env.tasks import load, load_set, shipped

    if not names:
        return list(shipped().values())
    found: list[Task] = []
    for name in names:
        folder = Path(name)
        is_set = folder.is_dir() and not (folder / "task.toml").exists()
        found += load_set(folder).values() if is_set else [load(name)]
    return found


@contextmanager
def failures_reported() -> Iterator[None]:
    """Turn an error of a task, or of this system, into its message and exit status."""
    from repl_env.tasks import TaskError
    from repl_sandbox import IsolationError, SandboxError

    try:
        yield
    except TaskError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    except IsolationError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitStatus.TIER_UNAVAILABLE) from error
    except SandboxError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitStatus.INFRASTRUCTURE) from error
