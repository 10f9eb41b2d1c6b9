"""`RewardStep`: applies an environment's transform and rubric to steps and resets.

Calls go through the methods that OpenEnv names (`_apply_transform`, `_apply_rubric`,
`_reset_rubric` and their asynchronous twins), because subclasses of users override these.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from repl_env.concurrency.offload import BlockingCall
from repl_env.concurrency.thread_pool import capture_error, capture_error_async
from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode
from repl_env.episode.effects import Effects
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.interfaces import Environment, finite
from repl_env.models import REPLAction, REPLObservation, REPLState, give
from repl_env.rewards import scoring
from repl_env.rewards.repl_rubric import returns_at_once
from repl_env.rewards.rubric import is_pending

Scored: TypeAlias = Environment[REPLAction, REPLObservation, REPLState]
# Effects that run with the observation of a step before the step is scored.
Before: TypeAlias = Callable[[CurrentEpisode, REPLObservation], Effects[None]]


class RewardStep:
    """Scores the steps of one environment.

    Args:
        environment: a weak reference to the environment, which has the transform and the rubric; a
            dropped environment ends at once.
        before_scoring: effects for each observation first; None: none.
    """

    def __init__(
        self, environment: Callable[[], Scored | None], before_scoring: Before | None = None
    ) -> None:
        self._environment, self.before_scoring = environment, before_scoring

    @property
    def environment(self) -> Scored:
        """The environment; a call on it keeps it alive."""
        found = self._environment()
        assert found is not None
        return found

    @property
    def rubric(self) -> Any:
        """The rubric of the environment."""
        return self.environment.rubric

    def transform(self, observation: REPLObservation) -> Effects[REPLObservation]:
        """Return the observation that the transform returns."""
        environment = self.environment
        if environment.transform is None:
            return observation
        changed: REPLObservation = yield BlockingCall(environment._apply_transform, observation)
        return changed

    def score(
        self, current: CurrentEpisode, action: REPLAction, observation: REPLObservation
    ) -> Effects[REPLObservation]:
        """Return the observation of a step with its reward; record the end of the episode."""
        if self.before_scoring is not None:
            yield from self.before_scoring(current, observation)
        # Recorded first: even if a transform or rubric raises, nothing more is run or scored.
        if observation.done:
            current.record_end(observation)
        observation = yield from self.transform(observation)
        reward, parts = 0.0, dict[str, float]()
        if observation.error_kind not in INFRASTRUCTURE_KINDS:
            reward = yield from self._reward(current.mode, action, observation)
            parts = scoring.components(self.rubric, reward)
        if type(observation) is REPLObservation:
            give(observation, reward=reward)
        else:  # set by a transform
            observation.reward = reward
        observation.metadata["reward_components"] = parts
        observation.metadata["task_reward"] = scoring.task_reward(self.rubric, parts)
        if observation.done:
            current.record_end(observation)
        return observation

    def _reward(
        self, mode: Mode, action: REPLAction, observation: REPLObservation
    ) -> Effects[float]:
        environment, rubric = self.environment, self.rubric
        reward: float
        if mode == "plain":
            reward = yield partial(environment._apply_rubric, action, observation)
        elif (
            rubric is not None
            and returns_at_once(rubric)
            and type(environment)._apply_rubric_async is Environment._apply_rubric_async
        ):
            # The subclass decides; it returns a coroutine for rubrics that usually return at once.
            score = capture_error(partial(rubric, action, observation))
            if is_pending(score):
                score = yield partial(capture_error_async, score)
            reward = finite(score, rubric)
        else:
            reward = yield partial(environment._apply_rubric_async, action, observation)
        return reward

    def check_expected(self, expected: Any) -> None:
        """Raise TypeError if the rubric accepts no expected answer."""
        if expected is not None and not scoring.takes_expected(self.rubric):
            raise TypeError(f"expected_answer: {type(self.rubric).__name__} takes none")

    def reset_rubric(
        self, current: CurrentEpisode | None, mode: Mode, expected: Any, state: Any = None
    ) -> Effects[None]:
        """Reset the rubric and give it the expected answer of the next episode.

        If the rubric fails, it gets the expected answer of `current` back, if there is an episode.
        """
        previous_state = None if current is None else scoring.state_of(self.rubric)
        try:
            yield self._reset(mode)
            scoring.remind(self.rubric, expected, state)
        except BaseException:
            # The caller gets the first error, not an error of this repair.
            with suppress(Exception):
                if current is not None:
                    yield self._reset(mode)
                    scoring.remind(self.rubric, current.hidden_task.expected_answer, previous_state)
            raise

    def _reset(self, mode: Mode) -> Callable[[], Any]:
        environment = self.environment
        plain = mode == "plain"
        return environment._reset_rubric if plain else environment._reset_rubric_async
