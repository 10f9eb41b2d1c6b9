"""`repl-env bench-tasks make`: a dataset of generated long-context tasks."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from .exit_status import ExitStatus
from .options.output_options import AsJSON

bench_tasks = typer.Typer(help="Generate long-context tasks with exact answers.")

_UNITS = {"": 1, "k": 1_000, "kb": 1_000, "m": 1_000_000, "mb": 1_000_000}
# A task's seed is made of the dataset's and its number, so that datasets of other seeds share none.
_SEEDS = 1_000_000
# Errors that are about the file or the folder that was given.
_WRONG_PLACE = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


@dataclass(frozen=True, slots=True)
class BenchTaskPlan:
    """The tasks of a dataset: `n` of them, the kinds in turn."""

    kinds: tuple[str, ...]
    n: int
    size: int
    seed: int
    files: Path | None

    def records(self, folder: Path) -> Iterator[dict[str, Any]]:
        """Yield the lines of a dataset in `folder`, and write the context files."""
        from repl_env.tasks.generators import make_task

        for number in range(self.n):
            kind = self.kinds[number % len(self.kinds)]
            task = make_task(kind, self.size, self.seed * _SEEDS + number)
            record = task.record()
            if self.files is not None:
                file = self.files / f"{task.id}.txt"
                file.write_text(record.pop("context"), encoding="utf-8", newline="\n")
                record["context_file"] = os.path.relpath(file, folder)
            yield record


Out: TypeAlias = Annotated[
    Path, typer.Option(metavar="FILE", help="Dataset to write, one task in each line.")
]
Kinds: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="KINDS",
        help="Kinds of tasks: all, or some of single_needle, multi_needle, aggregation and "
        "pairs, separated by commas.",
    ),
]
Count: TypeAlias = Annotated[
    int, typer.Option(min=1, max=_SEEDS, help="Number of tasks, kinds alternating.")
]
Size: TypeAlias = Annotated[
    str,
    typer.Option(metavar="SIZE", help="Length of a context in characters, such as 100k or 10M."),
]
Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Seed of the generator; another seed makes other tasks.")
]
ContextFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder for the contexts as files, instead of the dataset."
    ),
]


@bench_tasks.callback()
def _group() -> None:
    """Generate long-context tasks with exact answers."""


@bench_tasks.command()
def make(
    out: Out,
    kind: Kinds = "all",
    n: Count = 100,
    size: Size = "100k",
    seed: Seed = 1,
    context_files: ContextFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing dataset.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Write a dataset of generated tasks: the same options always make the same bytes."""
    plan = BenchTaskPlan(_kinds(kind), n, _characters(size), seed, context_files)
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} exists; --force replaces it", param_hint="'--out'")
    digest, written = _written(plan, out)
    kinds = plan.kinds[:n]
    facts = {"out": str(out), "n": n, "kinds": kinds, "size": plan.size, "seed": seed}
    if as_json:
        typer.echo(json.dumps({**facts, "bytes": written, "sha256": digest}))
    else:
        typer.echo(f"{out}: {n} tasks of {plan.size:,} characters ({', '.join(kinds)})")


def _written(plan: BenchTaskPlan, out: Path) -> tuple[str, int]:
    """Return the result of `_write`.

    Raises:
        typer.BadParameter: the file or the folder that was given cannot be written to.
        typer.Exit: status 1, after the reason: writing failed amid the work.
    """
    try:
        return _write(plan, out)
    except _WRONG_PLACE as error:
        folder = plan.files
        is_of_folder = folder is not None and Path(error.filename or out).is_relative_to(folder)
        named, option = (folder, "--context-files") if is_of_folder else (out, "--out")
        raise typer.BadParameter(f"{named}: {error.strerror}", param_hint=f"'{option}'") from error
    except OSError as error:
        typer.echo(f"{out}: {error.strerror or error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error


def _write(plan: BenchTaskPlan, out: Path) -> tuple[str, int]:
    """Write the dataset, whole or not at all, and return its digest and size."""
    from repl_env.common.replace_target import replace_target

    target = replace_target(out)
    part = target.with_name(target.name + ".part")
    digest, written = hashlib.sha256(), 0
    if plan.files is not None:
        plan.files.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            for record in plan.records(out.parent):
                line = json.dumps(record).encode("ascii") + b"\n"
                file.write(line)
                digest.update(line)
                written += len(line)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest(), written


def _kinds(given: str) -> tuple[str, ...]:
    from repl_env.tasks.generators import KINDS
    from repl_env.tasks.generators.task_kinds import kind_named

    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("names no kind", param_hint="'--kind'")
    if names == ["all"]:
        return tuple(KINDS)
    try:
        return tuple(dict.fromkeys(map(kind_named, names)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--kind'") from error


def _characters(given: str) -> int:
    from repl_env.tasks.generators import MAX_SIZE, MIN_SIZE

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", given.strip().lower())
    if found is None or found[2] not in _UNITS:
        message = f"{given!r} is no size; write it as 5000, 100k or 10M"
        raise typer.BadParameter(message, param_hint="'--size'")
    size = round(float(found[1]) * _UNITS[found[2]])
    if not MIN_SIZE <= size <= MAX_SIZE:
        message = f"a context has {MIN_SIZE:,} to {MAX_SIZE:,} characters, not {size:,}"
        raise typer.BadParameter(message, param_hint="'--size'")
    return size
