"""How an episode ended, in Gymnasium's words, and the task's part of a reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Ending: TypeAlias = Literal["terminated", "truncated"]


def termination_of(done: bool, metadata: Mapping[str, Any]) -> Ending | None:
    """How the episode ended: by an answer, or by a limit or a loss; None while it goes on.

    A server of OpenEnv's gives no `stop_reason`: there an answer is the end by an answer.
    """
    if not done:
        return None
    reason = metadata.get("stop_reason")
    answered = metadata.get("final_answer") is not None if reason is None else reason == "answer"
    return "terminated" if answered else "truncated"


class TerminationMixin:
    """An observation or a result, asked how its episode ended and what the task itself paid."""

    __slots__ = ()

    done: bool
    metadata: Any

    @property
    def terminated(self) -> bool:
        """Whether the policy ended the episode, by an answer."""
        return termination_of(self.done, self.metadata or {}) == "terminated"

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the episode, or the loss of its session.

        Exactly one of `terminated` and `truncated` is True once `done` is. An episode whose
        iterations are used up is truncated, also if `answer["content"]` is then taken as its
        answer. `metadata["truncated"]` is another thing: whether the output of the step was cut.
        """
        return termination_of(self.done, self.metadata or {}) == "truncated"

    @property
    def task_reward(self) -> float | None:
        """The task's part of `reward`, without the rubric's `shaping`; None if it is not told."""
        part: float | None = (self.metadata or {}).get("task_reward")
        return part
