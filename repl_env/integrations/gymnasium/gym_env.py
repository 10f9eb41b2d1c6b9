"""`REPLGymEnv`: one episode at a time, as `gymnasium.make("repl_env/REPL-v0")` gives it."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium

from repl_env.common.display import set_module
from repl_env.common.values import one_of
from repl_env.integrations.gymnasium.gym_episodes import Actions, GymEpisodes, Tasks
from repl_env.integrations.gymnasium.unicode_text import UnicodeText

# Characters. A step shows at most 20,000 of what a cell printed, and why it failed.
OBSERVATION = 25_000
ACTION = 100_000


RENDER_MODES = ("ansi",)


def check_render_mode(render_mode: str | None) -> None:
    """ValueError, unless the environments have this mode."""
    if render_mode is not None:
        one_of(render_mode, RENDER_MODES, "render_mode")


@set_module("repl_env.integrations.gymnasium")
class REPLGymEnv(gymnasium.Env[str, str]):
    """A session that is reset and stepped as an environment of Gymnasium's.

    ```python
    env = gymnasium.make("repl_env/REPL-v0")
    options = {"context": "a b c", "task_prompt": "How many words?", "expected_answer": 3}
    observation, info = env.reset(seed=1, options=options)
    observation, reward, terminated, truncated, info = env.step("FINAL(len(context.split()))")
    print(reward, terminated)  # 1.0 True
    env.close()
    ```
    An observation is the text that a policy is shown; no token of a chat template stands in it. An
    answer terminates an episode; a limit, or the loss of its session, truncates it. `info` has
    `error_kind`, `task_reward`, `final_answer`, `stop_reason`, `reward_components`, `iteration`,
    `mask` (the infrastructure failed: the episode is no measure of the policy) and `task_id`.

    Args:
        tasks: a list of arguments of `LocalREPLEnv.reset`, of which each reset without options
            draws one, or a function that makes them of a `numpy.random.Generator`. A task may
            have a `task_id`; in a list it is else the task's number.
        actions: "code": an action is a cell. "replies": an action is a reply of a model, whose
            code blocks are run and whose prose is not.
        max_iterations: steps of an episode whose task or options do not say.
        max_length: characters of an observation. Of a longer one the middle is left out.
        render_mode: None or "ansi", the last action and what it came to.
        arguments: those of `LocalREPLEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        *,
        tasks: Tasks | None = None,
        actions: Actions = "code",
        max_iterations: int | None = None,
        max_length: int = OBSERVATION,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        check_render_mode(render_mode)
        self._episodes = GymEpisodes(
            1,
            tasks=tasks,
            actions=actions,
            max_iterations=max_iterations,
            max_length=max_length,
            arguments=arguments,
        )
        self.render_mode = render_mode
        self.observation_space = UnicodeText(max_length)
        self.action_space = UnicodeText(ACTION)
        self._scene = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode in a new session.

        `options` are arguments of `LocalREPLEnv.reset`, in place of a drawn task. The random
        numbers of the session follow from those of this environment.
        """
        super().reset(seed=seed)
        observation, info = self._episodes.begin({0: self.np_random}, {0: options or {}})[0]
        self._scene = observation
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the code of `action`."""
        result = self._episodes.act({0: action})[0]
        observation, info = self._episodes.shown(0, result)
        self._scene = f"{action}\n\n{observation}"
        return observation, result.reward, result.terminated, result.truncated, info

    def render(self) -> Any:
        """The last action and the observation after it, if `render_mode` is "ansi"."""
        return self._scene if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the session. A later reset opens another."""
        self._episodes.close()
