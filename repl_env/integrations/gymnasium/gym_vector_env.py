"""`REPLGymVectorEnv`: episodes side by side, for `gymnasium.make_vec("repl_env/REPL-v0")`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from repl_env.common.display import set_module
from repl_env.common.values import at_least
from repl_env.integrations.gymnasium.gym_env import (
    ACTION,
    OBSERVATION,
    REPLGymEnv,
    check_render_mode,
)
from repl_env.integrations.gymnasium.gym_episodes import Actions, GymEpisodes, Request, Tasks
from repl_env.integrations.gymnasium.unicode_text import UnicodeText

Observations = tuple[str, ...]
Step = tuple[Observations, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


@set_module("repl_env.integrations.gymnasium")
class REPLGymVectorEnv(VectorEnv[Observations, Sequence[str], np.ndarray]):
    """n sessions of one process, stepped side by side.

    ```python
    envs = gymnasium.make_vec("repl_env/REPL-v0", num_envs=8, tasks=tasks)
    observations, infos = envs.reset(seed=1)
    observations, rewards, terminations, truncations, infos = envs.step(["print(context)"] * 8)
    envs.close()
    ```
    Each row does what a `REPLGymEnv` of the same arguments and seed does. Observations and actions
    are tuples of texts.

    Args:
        num_envs: the rows.
        autoreset_mode: "NextStep": the step after the end of a row's episode ignores its action
            and begins the next. "SameStep": the step that ends the episode begins the next;
            `infos["final_obs"]` and `infos["final_info"]` are of the end. "Disabled": `reset` with
            a mask begins it. It is `metadata["autoreset_mode"]` too.
        arguments: those of `REPLGymEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        tasks: Tasks | None = None,
        actions: Actions = "code",
        max_iterations: int | None = None,
        max_length: int = OBSERVATION,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        check_render_mode(render_mode)
        self.num_envs = at_least(num_envs, 1, "num_envs")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._episodes = GymEpisodes(
            num_envs,
            tasks=tasks,
            actions=actions,
            max_iterations=max_iterations,
            max_length=max_length,
            arguments=arguments,
        )
        self.metadata = {**REPLGymEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = render_mode
        self.single_observation_space = UnicodeText(max_length)
        self.single_action_space = UnicodeText(ACTION)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = [""] * num_envs
        self._scenes = [""] * num_envs
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._rngs = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode in every row, or in those of `options["reset_mask"]`.

        `seed` is that of the first row, which the others count on from, or one for each row.
        `options` are arguments of `LocalREPLEnv.reset` for all rows; `options["requests"]` has
        a mapping of them, or None, for each row that is reset. A task is drawn where a row has
        neither.
        """
        self._check_open()
        shared = dict(options or {})
        rows = self._rows_in(shared.pop("reset_mask", None))
        requests = shared.pop("requests", None)
        if requests is None:
            requests = [None] * len(rows)
        if len(requests) != len(rows):
            raise ValueError(f"options['requests']: {len(requests)} for {len(rows)} rows")
        seeds = self._seeds_of(seed)
        for row in rows:
            if seeds[row] is not None:
                self._rngs[row] = seeding.np_random(seeds[row])[0]
        each = {
            row: {**shared, **(request or {})} for row, request in zip(rows, requests, strict=True)
        }
        infos: dict[str, Any] = {}
        self._begin(rows, each, infos)
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str]) -> Step:
        """Take each row's action, all side by side."""
        self._check_open()
        actions = list(actions)
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: {len(actions)} for {self.num_envs} rows")
        ended_rows = np.flatnonzero(self._ended).tolist()
        if ended_rows and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of the rows {ended_rows} are over: reset them by a mask"
            )
        infos: dict[str, Any] = {}
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations, truncations = np.zeros((2, self.num_envs), dtype=np.bool_)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._begin(ended_rows, {}, infos)
        active = {row: action for row, action in enumerate(actions) if row not in set(ended_rows)}
        for row, result in self._episodes.act(active).items():
            observation, info = self._episodes.shown(row, result)
            rewards[row] = result.reward
            terminations[row], truncations[row] = result.terminated, result.truncated
            self._observations[row] = observation
            self._scenes[row] = f"{active[row]}\n\n{observation}"
            if result.done and self.autoreset_mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": observation, "final_info": info}
            infos = self._add_info(infos, info, row)
        over = terminations | truncations
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._begin(np.flatnonzero(over).tolist(), {}, infos)
        else:
            self._ended = over
        return tuple(self._observations), rewards, terminations, truncations, infos

    def render(self) -> Any:
        """Each row's last action and the observation after it, if `render_mode` is "ansi"."""
        return tuple(self._scenes) if self.render_mode == "ansi" else None

    def close_extras(self, **_: Any) -> None:
        """Close all sessions."""
        self._episodes.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed")

    def _begin(
        self, rows: Collection[int], options: Mapping[int, Request], infos: dict[str, Any]
    ) -> None:
        """Reset these rows, and add what they tell to `infos`."""
        if not rows:
            return
        results = self._episodes.begin({row: self._rngs[row] for row in rows}, options)
        for row, (observation, info) in results.items():
            self._observations[row] = self._scenes[row] = observation
            self._ended[row] = False
            self._add_info(infos, info, row)

    def _rows_in(self, mask: Any) -> list[int]:
        """The rows that a mask of a reset names; all without one."""
        if mask is None:
            return list(range(self.num_envs))
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must be {self.num_envs} bools, one of them True"
            )
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    def _seeds_of(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + row for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed: {len(seed)} seeds for {self.num_envs} rows")
        return seed
