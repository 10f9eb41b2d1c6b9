"""rLLM: episodes as an environment of its agent execution engine.

Needs rLLM, which is installed from its repository. It is not tested with rLLM itself, but by the
documented signatures of `BaseEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from repl_env.env.rows import EpisodeRows
from repl_env.integrations import needing, request_of_row

with needing("rLLM, from its repository", "rllm"):
    from rllm.environments.base.base_env import BaseEnv

__all__ = ["REPLReplyEnv"]


class REPLReplyEnv(BaseEnv):
    """Runs the code blocks of each reply in one session; a reply is a step.

    Args:
        task: the row of the dataset: "question", and arguments of a reset such as "context" and
            "expected_answer", or "ground_truth".
        arguments: those of `LocalREPLEnv`.

    Observations are {"question": ...} at first and {"observation": ...} after each step; `info` has
    `mask`, which says that a failure of the infrastructure touched the episode, and `episode`, the
    facts of the episode so far by the names of `repl_env.EpisodeSummary.to_dict`.
    """

    def __init__(self, task: Mapping[str, Any], **arguments: Any) -> None:
        super().__init__()
        self.task = dict(task)
        self._rows = EpisodeRows(1, **arguments)

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the episode, in a new session."""
        question = str(self.task.get("question", ""))
        self._rows.reset([{"task_prompt": question, **request_of_row(self.task)}])
        return {"question": question}, {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Run the code of a reply, which is a text or an rLLM `Action`."""
        (last,) = self._rows.step([getattr(action, "action", action)])
        assert last is not None
        facts = last.episode.to_dict()
        info = {"mask": last.mask, "truncated": last.truncated, "episode": facts}
        return {"observation": last.message}, last.reward, last.done, info

    def close(self) -> None:
        """End the session."""
        self._rows.close()

    @staticmethod
    def is_multithread_safe() -> bool:
        """Environments share nothing."""
        return True

    @classmethod
    def from_dict(cls, env_args: Mapping[str, Any]) -> Self:
        """The environment of a row; "env_arguments" in it are those of `LocalREPLEnv`."""
        row = dict(env_args)
        return cls(row, **row.pop("env_arguments", {}))
