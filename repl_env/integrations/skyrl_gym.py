"""SkyRL: episodes as an environment of skyrl-gym.

Needs `pip install 'repl-env[skyrl]'`. SkyRL makes environments by the name that one registers:
```python
skyrl_gym.register("repl-env", "repl_env.integrations.skyrl_gym:REPLTextEnv")
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repl_env.env.rollouts import EpisodeSummary
from repl_env.env.rows import EpisodeRows, RowResult
from repl_env.integrations import needing, request_of_row

with needing("skyrl-gym: pip install 'repl-env[skyrl]'", "skyrl_gym"):
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

__all__ = ["REPLTextEnv"]


class REPLTextEnv(BaseTextEnv):
    """Runs the code blocks of each reply in one session; a reply is a turn.

    Args:
        env_config: arguments of `LocalREPLEnv`, such as `isolation`.
        extras: the columns of the dataset's row: arguments of a reset such as `context`, of their
            own or under "extra_info"; `max_turns`; and the expected answer, as `expected_answer` or
            as SkyRL's `reward_spec["ground_truth"]`.

    A turn that a failure of the infrastructure touched has `mask` in its metadata and in the
    metrics, reward 0.0, and ends the episode. `episode` in the metadata has the facts of the
    episode so far, by the names of `repl_env.EpisodeSummary.to_dict`.
    """

    def __init__(
        self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] = {}
    ) -> None:
        super().__init__()
        self._request = request_of_row(extras)
        self.max_turns = int(self._request.get("max_iterations", 30))
        self._rows = EpisodeRows(1, **dict(env_config or {}))
        self._last: RowResult | None = None

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode; the prompt stays as it is."""
        request = {"task_prompt": str(prompt[-1]["content"]) if prompt else "", **self._request}
        self._rows.reset([request])
        self.turns, self._last = 0, None
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Run the code of a reply."""
        (last,) = self._rows.step([action])
        assert last is not None
        self.turns += 1
        self._last = last
        new_messages = [] if last.done else [{"role": "user", "content": last.message}]
        return BaseTextEnvStepOutput(
            observations=new_messages,
            reward=last.reward,
            done=last.done,
            metadata={
                "mask": last.mask,
                "error_kind": last.observation.error_kind,
                "episode": last.episode.to_dict(),
            },
        )

    def get_metrics(self) -> dict[str, Any]:
        """The results of the episode, for SkyRL's averages."""
        episode = EpisodeSummary() if self._last is None else self._last.episode
        return {
            "turns": self.turns,
            "task_reward": sum(episode.task_rewards, 0.0),
            "answered": float(episode.stop_reason == "answer"),
            "failed": float(any(episode.error_kinds)),
            "mask": float(episode.masked),
        }

    def close(self) -> None:
        """End the session."""
        self._rows.close()
