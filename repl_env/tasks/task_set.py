"""`TaskSet`: tasks by name, and `load`, which reads one task or a folder of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from repl_env.common.argument_checks import as_path
from repl_env.common.set_module import set_module
from repl_env.tasks.task import Task
from repl_env.tasks.task_errors import TaskError
from repl_env.tasks.task_file import FILE, described, read_task

SHIPPED = Path(__file__).with_name("sets")


@set_module("repl_env.tasks")
class TaskSet(Mapping[str, Task]):
    """Tasks by their names, in alphabetical order."""

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
