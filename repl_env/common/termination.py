"""The end of an episode in Gymnasium's terms, and the task's part of a reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Ending: TypeAlias = Literal["terminated", "truncated"]


def termination_of(done: bool, metadata: Mapping[str, Any]) -> Ending | None:
    """Return whether an answer, or a limit or loss, ended the episode; None while it goes on.

    OpenEnv's servers send no `stop_reason`: an answer then counts as the end.
    """
    if not done:
        return None
    reason = metadata.get("stop_reason")
    answered = metadata.get("final_answer") is not None if reason is None else reason == "answer"
    return "terminated" if answered else "truncated"


class TerminationMixin:
    """Properties of observations and results: the end of the episode and the task's own reward."""

    __slots__ = ()

    done: bool
    metadata: Any

    @property
    def terminated(self) -> bool:
        """Whether the policy ended the episode with an answer."""
        return termination_of(self.done, self.metadata or {}) == "terminated"

    @property
    def truncated(self) -> bool:
        """Whether a limit, or the loss of the session, ended the episode.

        Exactly one of `terminated` and `truncated` is True once `done` is. An episode whose
        iterations are
        used up is truncated, even if `answer["content"]` then becomes its answer.
        `metadata["truncated"]`
        means something else: the output of the step was cut.
        """
        return termination_of(self.done, self.metadata or {}) == "truncated"

    @property
    def task_reward(self) -> float | None:
        """The task's part of `reward`, without the rubric's `shaping`; None if the parts are
        unknown.
        """
        part: float | None = (self.metadata or {}).get("task_reward")
        return part
