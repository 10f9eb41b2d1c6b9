"""`repl-env tasks` and `repl-env bench-tasks`: tasks listed, run, checked; datasets generated."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.options import AsJSON, ExitStatus
from repl_env.cli.tables import harmless, one_line

if TYPE_CHECKING:
    from repl_env.tasks import Evaluator, SubmissionEvaluation, Task


# `repl-env bench-tasks make`: a dataset of generated long-context tasks.

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
    from repl_env.common.files import replace_target

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
    from repl_env.tasks.generators import KINDS, kind_named

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


# The tasks that arguments name: shipped ones by name, directories of a task or of several.


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
        typer.echo(harmless(str(error)), err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    except IsolationError as error:
        typer.echo(harmless(str(error)), err=True)
        raise typer.Exit(ExitStatus.TIER_UNAVAILABLE) from error
    except SandboxError as error:
        typer.echo(harmless(str(error)), err=True)
        raise typer.Exit(ExitStatus.INFRASTRUCTURE) from error


# `repl-env tasks check`: the scores of a task beside its documented ones.

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
    failure = one_line(f"{found.failure}: {found.message}", 500) if found.failure else None
    return {
        "task": found.task,
        "which": which,
        "score": found.score,
        "documented": documented,
        "failure": failure,
        "ok": ok,
    }


# `repl-env tasks list`.


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

    from repl_env.cli.tables import FittedTable, Heading

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


# `repl-env tasks run`: the evaluation of a submission.


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
        typer.echo(f"{found.name}: failed ({result.failure}): {one_line(result.message, 500)}")
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


# `repl-env tasks`: the tasks that are shipped or in folders, evaluated and checked.

tasks = typer.Typer(help="List tasks, evaluate submissions, check tasks.", no_args_is_help=True)
tasks.command("list")(list_tasks)
tasks.command("run")(run)
tasks.command("check")(check)
