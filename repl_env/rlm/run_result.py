"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.common.termination import Ending
from repl_env.interfaces import Message
from repl_env.rlm.budget.budget_limits import Spent

if TYPE_CHECKING:
    from repl_env.errors import BudgetExceeded
    from repl_env.rlm.events import TaskNote
    from repl_env.rlm.trajectory.trajectory import Trajectory
    from repl_sandbox.types import JSON


@set_module("repl_env.recursive_backends")
@dataclass(frozen=True, slots=True, repr=False)
class ChildTrace(Displayed):
    """A call that a child run, or a function for sub-calls, answered. The fields are OpenEnv's."""

    depth: int
    duration_s: float
    prompt_preview: str
    result_preview: str | None
    error: str | None = None


@set_module("repl_env")
@dataclass(frozen=True, slots=True, repr=False)
class RLMRunResult(Displayed):
    """The result of a run.

    Args:
        final_answer: the answer as text; None if there is none.
        messages: the conversation as the model saw it last, with its last reply.
        iterations: turns of the model.
        depth: of this run; 0 is the root.
        child_traces: of the recursive calls of this run.
        answer_value: the answer as JSON, if JSON can carry it.
        stop_reason: "answer"; "max_iterations" (an answer, if any, came after the turns were used
            up);
            "budget" and "timeout" (the content of `answer["content"]` is the answer); "error" and
            "cancelled", which only errors and events carry.
        error_kind: None, or the kind of failure, as in the metadata of steps. "llm" and "sandbox":
            the
            run says nothing about the model.
        usage: the spending of the run with all runs below it; `own` excludes those.
        reward: of the episode, also without an answer; None without an expected answer or a scoring
            rubric, and if `error_kind` is an infrastructure kind.
        ended: "terminated": a submitted answer ended the episode; "truncated": a limit or a loss
            did,
            and the content of `answer["content"]` is the answer.
        task_reward: the task's own part of `reward`, without the rubric's `shaping`.
        task: the facts of the task, with the `group_id`, if the caller gave any.
        reason: the part of the budget that ended the run, in words; None otherwise.
        exceeded: the error behind `reason`; its `field` names the part of the budget.
        trajectory: the whole tree.
    """

    final_answer: str | None
    messages: list[Message] = field(repr=False)
    iterations: int
    depth: int = 0
    child_traces: list[ChildTrace] = field(default_factory=list, repr=False)
    answer_value: JSON = field(default=None, repr=False)
    stop_reason: str = "answer"
    error_kind: str | None = None
    usage: Spent = field(default_factory=Spent)
    own: Spent = field(default_factory=Spent, repr=False)
    reward: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    exceeded: BudgetExceeded | None = field(default=None, repr=False, compare=False)
    ended: Ending | None = None
    task_reward: float | None = None
    task: TaskNote | None = field(default=None, repr=False)
    _events: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def group_id(self) -> str | None:
        """The group of samples of one task that the run belongs to."""
        return None if self.task is None else self.task.group_id

    @property
    def trajectory(self) -> Trajectory:
        """The tree of this run and all runs below it."""
        from repl_env.rlm.trajectory.trajectory import Trajectory

        return Trajectory.of(self._events)
