"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from repl_env.common.termination import Ending
from repl_env.interfaces import Message
from repl_env.models import shown
from repl_env.rlm.budget.budget_limits import Spent

if TYPE_CHECKING:
    from repl_env.rlm.events import TaskNote
    from repl_env.rlm.trajectory.trajectory import Trajectory
    from repl_sandbox.types import JSON


@dataclass(frozen=True, slots=True)
class ChildTrace:
    """A call that a child run answered, or a function for sub-calls. The fields are OpenEnv's."""

    depth: int
    duration_s: float
    prompt_preview: str
    result_preview: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RLMRunResult:
    """What a run came to.

    Args:
        final_answer: the answer as text; None if there is none.
        messages: the conversation as the model saw it last, with its last reply.
        iterations: turns of the model.
        depth: of this run; 0 is the root.
        child_traces: of the calls of this run that were recursive.
        answer_value: the answer as JSON, where JSON can carry it.
        stop_reason: "answer"; "max_iterations" (the answer, if any, was given when the turns were
            used up); "budget" and "timeout" (what was in `answer["content"]` is the answer);
            "error" and "cancelled", which only errors and events carry.
        error_kind: None, or what went wrong, as in the metadata of steps. "llm" and "sandbox": the
            run is no measure of the model.
        usage: what the run spent with all runs below it; `own` is without those.
        reward: of the episode, one without an answer included; None without an expected answer or
            rubric that scores, and where `error_kind` says that a failure of ours is in it.
        ended: "terminated": an answer that was submitted ended the episode; "truncated": a limit
            or a loss did, and what `answer["content"]` held is the answer.
        task_reward: the part of `reward` that is the task's own, without the rubric's `shaping`.
        task: the facts of the task, with the `group_id`, where the caller gave any.
        reason: which part of the budget ended the run, in words; None if none did.
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
    ended: Ending | None = None
    task_reward: float | None = None
    task: TaskNote | None = field(default=None, repr=False)
    _events: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def __repr__(self) -> str:
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.repr)
        return f"RLMRunResult({', '.join(f'{name}={shown(value)!r}' for name, value in named)})"

    @property
    def group_id(self) -> str | None:
        """The group of samples of one task that the run is one of."""
        return None if self.task is None else self.task.group_id

    @property
    def trajectory(self) -> Trajectory:
        """The tree of this run and all runs below it."""
        from repl_env.rlm.trajectory.trajectory import Trajectory

        return Trajectory.of(self._events)
