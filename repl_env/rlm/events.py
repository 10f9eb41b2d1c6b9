"""Events of a tree of runs, reported as they happen.

Trajectories, progress displays and training samples are all made from events, so there is one
record of a run. Events of one run are in order; those of concurrent runs are mixed.

The name of a run is its path: the root is "0", and the child that the third call of "0" made is
"0.3". A call has the name of the child that it makes or would make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.common.termination import Ending
from repl_env.interfaces import Message
from repl_env.llm.base import Completion, ModelUsage
from repl_env.models import REPLObservation
from repl_env.rlm.budget.budget_limits import Spent

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

CallKind: TypeAlias = Literal["llm", "rlm"]

# The error of a call that was cancelled before its answer.
CANCELLED = "the call was cancelled"


@dataclass(frozen=True, slots=True, repr=False)
class ContextNote(Displayed):
    """A context without its content: the variable, its type, its length as in `context_length`."""

    name: str
    type: str
    length: int


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TaskNote(Displayed):
    """The facts of a task by which trainers group samples.

    `name` is the task's name or id, `group_id` that of the group of samples of one task that
    contains the run; `group` is the task's own, as its set sorts tasks.
    """

    name: str | None = None
    group_id: str | None = None
    split: str | None = None
    difficulty: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Event(Displayed):
    """An event of run `run` at `time`, in seconds since the epoch."""

    run: str
    time: float


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunStarted(Event):
    """A run begins. `depth` 0 is the root."""

    depth: int
    question: str
    model: str | None
    max_iterations: int
    contexts: tuple[ContextNote, ...]
    task: TaskNote | None = None


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelReplied(Event):
    """The model of the run took turn number `turn`, from 1.

    Its prompt was the first `kept` messages of the conversation so far (the messages of the turn
    before, and its reply), then `added`. Only the reply was sampled. `last` marks the turn that
    only asks for an answer.
    """

    turn: int
    kept: int
    added: tuple[Message, ...]
    completion: Completion
    seconds: float
    last: bool = False


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CellStarted(Event):
    """A block of code of turn `turn` begins to run, the run's cell number `cell`, from 1."""

    turn: int
    cell: int
    code: str


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CellRan(Event):
    """The cell has run. `observation` has its reward."""

    turn: int
    cell: int
    code: str
    observation: REPLObservation
    seconds: float


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallStarted(Event):
    """Code of cell `cell` calls a model ("llm") or a child run ("rlm")."""

    call: str
    kind: CallKind
    cell: int
    model: str | None
    prompt: str


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CallEnded(Event):
    """The result of the call, as the code received it. `child`: a run answered the call.

    `usage` is of a model's answer; that of a child is in its `RunEnded`.
    """

    call: str
    kind: CallKind
    cell: int
    model: str | None
    prompt: str
    text: str
    error: str | None
    truncated: bool
    usage: ModelUsage
    seconds: float
    child: bool = False


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunEnded(Event):
    """A run is over. `own` is its own spending, `total` includes all runs below it.

    `stop_reason`, `error_kind`, `ended` and `task_reward` are those of `RLMRunResult`.
    """

    final_answer: str | None
    answer_value: JSON
    stop_reason: str
    error_kind: str | None
    reward: float | None
    iterations: int
    own: Spent
    total: Spent
    seconds: float
    ended: Ending | None = None
    task_reward: float | None = None


AnyEvent: TypeAlias = (
    RunStarted | ModelReplied | CellStarted | CellRan | CallStarted | CallEnded | RunEnded
)
# Called from the event loop of the run, one event at a time; it must not block.
EventHandler: TypeAlias = Callable[[AnyEvent], None]
