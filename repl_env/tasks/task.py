"""`Task`: a directory with an instruction, files to begin with, and an evaluator."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repl_env.common.set_module import set_module
from repl_env.tasks.gain_range import in_gain_range
from repl_env.tasks.task_errors import TaskError
from repl_env.tasks.task_folder import EVALUATOR_FILE, read_folder

if TYPE_CHECKING:
    from repl_env.tasks.episodes.task_env import TaskEnv

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
        from repl_env.tasks.episodes.task_env import TaskEnv

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
