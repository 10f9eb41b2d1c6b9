"""`Task` and `TaskSet`: a directory with an instruction, files and an evaluator; `task.toml`."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repl_env.common.display import set_module
from repl_env.common.files import read_regular_text
from repl_env.common.values import as_path
from repl_env.tasks.submission import EVALUATOR_FILE, TaskError, in_gain_range, read_folder

if TYPE_CHECKING:
    from repl_env.tasks.episodes import TaskEnv


# `Task`: a directory with an instruction, files to begin with, and an evaluator.

Direction: TypeAlias = Literal["maximize", "minimize"]


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """Limits of an episode and of an evaluation of a task; times are seconds.

    Attributes:
        steps: steps of an episode.
        cell: execution of one cell of an episode.
        call: execution of one call of the submission by the evaluator.
        evaluation: all calls of an evaluation together; likewise the evaluator's own execution.
        validations: calls of `validate()` in an episode.
        memory: of each session; None: as the sandbox has it.
    """

    steps: int = 30
    cell: float = 30.0
    call: float = 10.0
    evaluation: float = 60.0
    validations: int = 10
    memory: str | None = None


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as its directory describes it; `repl_env.tasks.load` reads one.

    Attributes:
        directory: where the task is; its files are read when they are needed.
        metric, direction: what the evaluator's score is, and which way is better.
        submission: the files of a submission, by their paths in the workspace; all must be there.
        module: the module of the submission whose functions the evaluator calls; None: it calls
            none and reads files only.
        baseline, reference: the scores of the baseline and of the reference solution. Their
            difference is the scale of `gain`.
        packages: distributions that submission or evaluator import.
        evaluator: the folder with `evaluate.py`; None if the task has none that can be run here.
        layout: "repl-env" or "harbor".
        hidden: the folder that sessions must not see; that of the set where the task is of one.
    """

    name: str
    directory: Path
    instruction: str = field(repr=False)
    metric: str
    direction: Direction
    submission: tuple[str, ...]
    module: str | None
    baseline: float
    reference: float
    limits: TaskLimits = field(default_factory=TaskLimits)
    packages: tuple[str, ...] = ()
    split: str = "train"
    difficulty: str | None = None
    group: str | None = None
    evaluator: Path | None = None
    layout: Literal["repl-env", "harbor"] = "repl-env"
    hidden: Path | None = None

    def gain(self, score: float) -> float:
        """How far `score` is from the baseline (0) to the reference (1), from -1 to 2."""
        return in_gain_range((score - self.baseline) / (self.reference - self.baseline))

    def better(self, one: float, other: float) -> bool:
        """Whether the score `one` is better than `other`."""
        return one > other if self.direction == "maximize" else one < other

    @property
    def prompt(self) -> str:
        """The instruction, with how a submission is made, checked and handed in."""
        return f"{self.instruction.strip()}\n\n{_submission_instructions(self)}"

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that metadata of steps, trajectories and samples carry."""
        return {
            "name": self.name,
            "metric": self.metric,
            "direction": self.direction,
            "group": self.group,
            "split": self.split,
            "difficulty": self.difficulty,
        }

    def starter_files(self) -> dict[str, bytes]:
        """The files that an episode's workspace begins with; data is below `data/`."""
        if self.layout == "harbor":
            return self._files("environment", without={"Dockerfile", "docker-compose.yaml"})
        return {**self._files("starter"), **self.data_files()}

    def data_files(self) -> dict[str, bytes]:
        """The data, by paths below `data/`; a submission cannot replace it."""
        return {f"data/{path}": data for path, data in self._files("data").items()}

    def baseline_files(self) -> dict[str, bytes]:
        """The submission that `baseline` is the score of."""
        return self._required("baseline")

    def solution_files(self) -> dict[str, bytes]:
        """The submission that `reference` is the score of."""
        return self._required("solution")

    def evaluator_files(self) -> dict[str, bytes]:
        """The evaluator with its own data; TaskError if there is none."""
        if self.evaluator is None:
            raise TaskError(f"{self.name}: {_without_evaluator(self)}")
        files = self._files(self.evaluator.name)
        if EVALUATOR_FILE not in files:
            raise TaskError(f"{self.name}: {self.evaluator / EVALUATOR_FILE} is not there")
        return files

    def open(self, **arguments: Any) -> TaskEnv:
        """Episodes of this task; the arguments are those of `TaskEnv`."""
        from repl_env.tasks.episodes import TaskEnv

        return TaskEnv(self, **arguments)

    def _required(self, folder: str) -> dict[str, bytes]:
        files = self._files(folder)
        if missing := [path for path in self.submission if path not in files]:
            raise TaskError(f"{self.name}: {folder}/{missing[0]} is not there")
        return files

    def _files(self, folder: str, without: Collection[str] = ()) -> dict[str, bytes]:
        return read_folder(self.name, self.directory, folder, without)


def _submission_instructions(task: Task) -> str:
    files = " and ".join(f"`{path}`" for path in task.submission)
    better = "higher" if task.direction == "maximize" else "lower"
    return (
        f"Write {files} in the working directory. `validate()` evaluates the files as they are and "
        f"returns the score ({task.metric}, {better} is better; the baseline has "
        f"{task.baseline:g}); it may be called {task.limits.validations} times. `submit()` hands "
        "them in and ends the episode."
    )


def _without_evaluator(task: Task) -> str:
    if task.layout == "harbor":
        return (
            "tests/ has no evaluate.py. Its test.sh needs a container of Harbor's; an evaluate.py "
            "beside it is run here (docs/tasks.md)"
        )
    return f"there is no evaluator: {task.directory / 'evaluator' / EVALUATOR_FILE} is missing"


# `task.toml` of a task directory, in our layout and in Harbor's, checked whole.

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
        table = tomllib.loads(read_regular_text(file))
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
        text = read_regular_text(file)
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


# `TaskSet`: tasks by name and by split, and `load`, which reads one task or a folder of them.

SHIPPED = Path(__file__).with_name("sets")


@set_module("repl_env.tasks")
class TaskSet(Mapping[str, Task]):
    """Tasks by their names, in alphabetical order.

    It is a `repl_env.interfaces.TaskProvider` as well: tasks by split and index. Descriptions have
    what a policy may know: facts, instruction and limits of steps, nothing of the evaluator.

    ```python
    tasks = shipped()
    print(tasks.list_splits(), tasks.num_tasks("train"), tasks.get_task("train", 0)["name"])
    ```
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = dict(sorted(tasks.items()))

    def __getitem__(self, name: str) -> Task:
        try:
            return self._tasks[name]
        except KeyError:
            raise KeyError(f"no task {name!r}; there are {described(self._tasks)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"TaskSet({', '.join(self._tasks)})"

    def where(
        self,
        *,
        split: str | None = None,
        difficulty: str | None = None,
        group: str | None = None,
    ) -> TaskSet:
        """Those of a split, a difficulty, a group; None takes all."""
        conditions = {"split": split, "difficulty": difficulty, "group": group}
        conditions = {name: value for name, value in conditions.items() if value is not None}
        return TaskSet(
            {
                name: task
                for name, task in self._tasks.items()
                if all(getattr(task, key) == value for key, value in conditions.items())
            }
        )

    def list_splits(self) -> list[str]:
        """Return the names of the splits, in alphabetical order."""
        return sorted({task.split for task in self._tasks.values()})

    def in_split(self, split: str) -> list[Task]:
        """Return the tasks of a split, in alphabetical order.

        Raises:
            ValueError: no task has this split.
        """
        tasks = [task for task in self._tasks.values() if task.split == split]
        if not tasks:
            raise ValueError(f"no split {split!r}; there are {', '.join(self.list_splits())}")
        return tasks

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split; ValueError if no task has it."""
        return len(self.in_split(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return a description of each task of a split, as `get_task` has them."""
        return self.get_task_range(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return the facts of a task with its `id`, `index`, `instruction` and `max_iterations`.

        Raises:
            IndexError: the split has fewer tasks, or `index` is negative.
            ValueError: no task has this split.
        """
        tasks = self.in_split(split)
        if not 0 <= index < len(tasks):
            raise IndexError(f"split {split!r} has the tasks 0 to {len(tasks) - 1}, not {index}")
        return _description(index, tasks[index])

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the descriptions of the tasks from `start` to before `stop`, as a slice."""
        numbered = list(enumerate(self.in_split(split)))
        return [_description(index, task) for index, task in numbered[start:stop]]


def _description(index: int, task: Task) -> dict[str, Any]:
    return {
        "id": task.name,
        "index": index,
        **task.facts,
        "instruction": task.instruction,
        "max_iterations": task.limits.steps,
    }


@set_module("repl_env.tasks")
def shipped() -> TaskSet:
    """The tasks that come with this package."""
    return _folder(SHIPPED, SHIPPED)


@set_module("repl_env.tasks")
def load(path: str | os.PathLike[str]) -> Task:
    """The task at `path`: a directory with a `task.toml`, or the name of a task that is shipped.

    Harbor's layout is read as well (docs/tasks.md).

    Raises:
        TaskError: there is none, or it is wrong; the message says where.
    """
    if isinstance(path, str) and (SHIPPED / path / FILE).is_file() and "/" not in path:
        return read_task(SHIPPED / path, SHIPPED)
    directory = as_path(path, "path")
    if not directory.is_dir():
        names = described(shipped())
        raise TaskError(f"{directory}: no directory, and none of the shipped tasks: {names}")
    return read_task(directory)


@set_module("repl_env.tasks")
def load_set(path: str | os.PathLike[str]) -> TaskSet:
    """The tasks in the folders of the folder `path`.

    Raises:
        TaskError: there is none, one is wrong, or two have one name.
    """
    folder = as_path(path, "path")
    if not folder.is_dir():
        raise TaskError(f"{folder}: no directory")
    found = _folder(folder, None)
    if not found:
        raise TaskError(f"{folder}: no folder in it has a {FILE}")
    return found


def _folder(folder: Path, hidden: Path | None) -> TaskSet:
    tasks: dict[str, Task] = {}
    for file in sorted(folder.glob(f"*/{FILE}")):
        task = read_task(file.parent, hidden)
        if task.name in tasks:
            raise TaskError(f"{file}: the name {task.name!r} is {tasks[task.name].directory}'s")
        tasks[task.name] = task
    return TaskSet(tasks)
