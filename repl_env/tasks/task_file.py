"""`task.toml` of a task directory, in our layout and in Harbor's, checked whole."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any

from repl_env.tasks.task import Task, TaskLimits
from repl_env.tasks.task_errors import TaskError
from repl_env.tasks.task_folder import EVALUATOR_FILE

FILE = "task.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = frozenset(
    "name instruction metric direction submission module packages split difficulty group "
    "scores limits".split()
)
# Tables that only Harbor's layout has; `version` is the older name of `schema_version`.
_HARBOR_KEYS = frozenset("version schema_version task metadata verifier agent environment".split())
_EXTENSION_KEY = "repl_env"  # a table of `metadata`, which Harbor leaves to others


class TaskFields:
    """The values of one table, each taken once and checked; TaskError names what is wrong."""

    def __init__(self, file: Path, table: object, name: str = "") -> None:
        self.file, self.name = file, name
        if not isinstance(table, dict):
            raise self.error(name or "file", "must be a table")
        self.table: dict[str, Any] = table

    def error(self, key: str, problem: str) -> TaskError:
        """The error for the value of `key`."""
        return TaskError(f"{self.file}: {f'{self.name}.' if self.name else ''}{key} {problem}")

    def check_known(self, allowed: frozenset[str]) -> None:
        """TaskError for a key that means nothing."""
        if unknown := sorted(self.table.keys() - allowed):
            raise self.error(unknown[0], f"is none of {', '.join(sorted(allowed))}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self.table.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "must be a text that is not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not there."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, "must be a list of texts")
        return tuple(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.table.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(key, "must be a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.error(key, "must be finite")
        return number

    def table_at(self, key: str) -> TaskFields:
        """The table of this name; empty if it is not there."""
        name = f"{self.name}.{key}" if self.name else key
        return TaskFields(self.file, self.table.get(key, {}), name)


def read_task(directory: Path, hidden: Path | None = None) -> Task:
    """The task in `directory`; `hidden` is the folder that sessions must not see, if not that.

    Raises:
        TaskError: there is no task, or what its file says is wrong.
    """
    file = directory / FILE
    try:
        with file.open("rb") as opened:
            table = tomllib.load(opened)
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {error}") from error
    task_fields = TaskFields(file, table)
    read = _harbor if _HARBOR_KEYS & table.keys() else _native
    return read(directory, hidden or directory, task_fields)


def _native(directory: Path, hidden: Path, task_fields: TaskFields) -> Task:
    task_fields.check_known(_KEYS)
    return Task(
        name=_named(task_fields, directory),
        directory=directory,
        hidden=hidden,
        instruction=_instruction(directory, task_fields),
        packages=_packages(task_fields),
        split=task_fields.text("split", "train"),
        difficulty=_optional(task_fields, "difficulty"),
        group=_optional(task_fields, "group"),
        limits=_limits(task_fields.table_at("limits")),
        evaluator=_evaluator(directory / "evaluator"),
        **_scored(task_fields),
    )


def _harbor(directory: Path, hidden: Path, task_fields: TaskFields) -> Task:
    metadata = task_fields.table_at("metadata")
    extension = metadata.table_at(_EXTENSION_KEY)
    extension.check_known(_KEYS - {"name", "instruction", "difficulty"})
    task = task_fields.table_at("task")
    limits: dict[str, Any] = {
        "call": task_fields.table_at("verifier").number("timeout_sec", 60.0),
        "evaluation": task_fields.table_at("verifier").number("timeout_sec", 60.0),
        "cell": task_fields.table_at("agent").number("timeout_sec", 30.0),
    }
    memory = task_fields.table_at("environment").table.get("memory_mb")
    if memory is not None:
        limits["memory"] = f"{int(task_fields.table_at('environment').number('memory_mb'))}MiB"
    return Task(
        name=_named(task, directory),
        directory=directory,
        hidden=hidden,
        instruction=_instruction(directory, task_fields),
        packages=_packages(extension),
        split=extension.text("split", "train"),
        difficulty=_optional(metadata, "difficulty"),
        group=_optional(extension, "group") or _optional(metadata, "category"),
        limits=_limits(
            TaskFields(task_fields.file, limits | extension.table_at("limits").table, "limits")
        ),
        evaluator=_evaluator(directory / "tests"),
        layout="harbor",
        **_scored(extension, harbor=True),
    )


def _scored(task_fields: TaskFields, *, harbor: bool = False) -> dict[str, Any]:
    """Read the submission and its metric. Harbor's rewards go from 0 to 1 by default."""
    metric = task_fields.text("metric", "reward" if harbor else None)
    direction = task_fields.text("direction", "maximize" if harbor else None)
    if direction not in ("maximize", "minimize"):
        raise task_fields.error("direction", f'must be "maximize" or "minimize", not {direction!r}')
    scores = task_fields.table_at("scores")
    scores.check_known(frozenset({"baseline", "reference"}))
    baseline = scores.number("baseline", 0.0 if harbor else None)
    reference = scores.number("reference", 1.0 if harbor else None)
    if not math.isfinite(reference - baseline):
        raise scores.error("reference", "is too far from the baseline")
    if (reference <= baseline) if direction == "maximize" else (reference >= baseline):
        raise scores.error("reference", "must be better than the baseline, by the direction")
    submission = task_fields.texts("submission")
    if not submission and not harbor:
        raise task_fields.error("submission", "must name the files of a submission")
    for path in submission:
        _check_path(task_fields, path)
    return {
        "metric": metric,
        "direction": direction,
        "baseline": baseline,
        "reference": reference,
        "submission": submission,
        "module": _module(task_fields, submission),
    }


def _module(task_fields: TaskFields, submission: tuple[str, ...]) -> str | None:
    module = _optional(task_fields, "module")
    if module is None:
        return None
    if not all(part.isidentifier() for part in module.split(".")):
        raise task_fields.error("module", f"must name a module, not {module!r}")
    if module.replace(".", "/") + ".py" not in submission:
        raise task_fields.error("module", f"{module!r} is not among the files of `submission`")
    return module


def _check_path(task_fields: TaskFields, path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path or parts[0] == "data":
        raise task_fields.error(
            "submission", f"{path!r} is not a path in the workspace, outside data/"
        )


def _limits(task_fields: TaskFields) -> TaskLimits:
    kinds = {each.name: each for each in fields(TaskLimits)}
    task_fields.check_known(frozenset(kinds))
    values: dict[str, Any] = {}
    for name in task_fields.table:
        if name == "memory":
            values[name] = task_fields.text(name)
            continue
        number = task_fields.number(name)
        if number <= 0:
            raise task_fields.error(name, "must be more than 0")
        if name in ("steps", "validations") and not number.is_integer():
            raise task_fields.error(name, "must be a whole number")
        values[name] = int(number) if name in ("steps", "validations") else number
    if "memory" in values:
        _check_size(task_fields, values["memory"])
    return TaskLimits(**values)


def _check_size(task_fields: TaskFields, memory: str) -> None:
    from repl_sandbox.types import Limits

    try:
        Limits(memory=memory)
    except ValueError as error:
        raise task_fields.error("memory", str(error)) from error


def _packages(task_fields: TaskFields) -> tuple[str, ...]:
    packages = task_fields.texts("packages")
    for name in packages:
        if _PACKAGE.fullmatch(name) is None:
            raise task_fields.error("packages", f"{name!r} is not the name of a distribution")
    return packages


def _named(task_fields: TaskFields, directory: Path) -> str:
    # Harbor's names are "organisation/name".
    name = task_fields.text("name", directory.resolve().name).rpartition("/")[2]
    if _NAME.fullmatch(name) is None:
        raise task_fields.error("name", f"must be letters, digits, '.', '_' and '-', not {name!r}")
    return name


def _instruction(directory: Path, task_fields: TaskFields) -> str:
    if "instruction" in task_fields.table:
        return task_fields.text("instruction")
    file = directory / "instruction.md"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise task_fields.error("instruction", f"is missing, and so is {file.name}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: {error}") from error
    if not text.strip():
        raise TaskError(f"{file}: is empty")
    return text


def _evaluator(folder: Path) -> Path | None:
    return folder if (folder / EVALUATOR_FILE).is_file() else None


def _optional(task_fields: TaskFields, key: str) -> str | None:
    return task_fields.text(key) if key in task_fields.table else None


def described(tasks: Mapping[str, Task]) -> str:
    """The names of tasks, for errors."""
    return ", ".join(tasks) or "none"
