"""`RewardStep`: the transform and the rubric of an environment, as a step and a reset ask them.

Both are asked through the methods that OpenEnv names (`_apply_transform`, `_apply_rubric`,
`_reset_rubric` and their asynchronous twins), because subclasses of users replace these.
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
from repl_env.errors import OURS
from repl_env.interfaces import Environment, finite
from repl_env.models import REPLAction, REPLObservation, REPLState, give
from repl_env.rewards import scoring
from repl_env.rewards.rubric import is_pending, is_prompt

Scored: TypeAlias = Environment[REPLAction, REPLObservation, REPLState]
# A turn that is played with the observation of a step before the step is scored.
Before: TypeAlias = Callable[[CurrentEpisode, REPLObservation], Effects[None]]


class RewardStep:
    """Scores the steps of one environment.

    Args:
        environment: a weak reference to the environment, which has the transform and the rubric;
            so one that is dropped ends at once.
        before: done with each observation first; None: nothing.
    """

    def __init__(
        self, environment: Callable[[], Scored | None], before: Before | None = None
    ) -> None:
        self._environment, self.before = environment, before

    @property
    def environment(self) -> Scored:
        """The environment, which a call on it keeps alive."""
        found = self._environment()
        assert found is not None
        return found

    @property
    def rubric(self) -> Any:
        """The rubric of the environment."""
        return self.environment.rubric

    def transforming(self, observation: REPLObservation) -> Effects[REPLObservation]:
        """The observation as the transform returns it."""
        environment = self.environment
        if environment.transform is None:
            return observation
        changed: REPLObservation = yield BlockingCall(environment._apply_transform, observation)
        return changed

    def scoring(
        self, current: CurrentEpisode, action: REPLAction, observation: REPLObservation
    ) -> Effects[REPLObservation]:
        """The observation of a step with its reward; an end of the episode is latched."""
        if self.before is not None:
            yield from self.before(current, observation)
        # Latched first: whatever a transform or rubric raises, nothing is run or scored any more.
        if observation.done:
            current.latch(observation)
        observation = yield from self.transforming(observation)
        reward, parts = 0.0, dict[str, float]()
        if observation.error_kind not in OURS:
            reward = yield from self._reward(current.mode, action, observation)
            parts = scoring.components(self.rubric, reward)
        if type(observation) is REPLObservation:
            give(observation, reward=reward)
        else:  # a transform's own
            observation.reward = reward
        observation.metadata["reward_components"] = parts
        observation.metadata["task_reward"] = scoring.task_reward(self.rubric, parts)
        if observation.done:
            current.latch(observation)
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
            and is_prompt(rubric)
            and type(environment)._apply_rubric_async is Environment._apply_rubric_async
        ):
            # As that has it, which is a coroutine for what is over at once as a rule.
            score = capture_error(partial(rubric, action, observation))
            if is_pending(score):
                score = yield partial(capture_error_async, score)
            reward = finite(score, rubric)
        else:
            reward = yield partial(environment._apply_rubric_async, action, observation)
        return reward

    def check_expected(self, expected: Any) -> None:
        """TypeError if the rubric cannot be told what is expected."""
        if expected is not None and not scoring.takes_expected(self.rubric):
            raise TypeError(f"expected_answer: {type(self.rubric).__name__} takes none")

    def reminding(
        self, current: CurrentEpisode | None, mode: Mode, expected: Any, state: Any = None
    ) -> Effects[None]:
        """Have the rubric forget the last episode, and know of the next one what is given.

        If the rubric fails, it is told again what it knew of `current`, if there is one.
        """
        kept = None if current is None else scoring.state_of(self.rubric)
        try:
            yield self._reset(mode)
            scoring.remind(self.rubric, expected, state)
        except BaseException:
            # The caller is told that it failed, and not what it says to this.
            with suppress(Exception):
                if current is not None:
                    yield self._reset(mode)
                    scoring.remind(self.rubric, current.asked.expected_answer, kept)
            raise

    def _reset(self, mode: Mode) -> Callable[[], Any]:
        environment = self.environment
        plain = mode == "plain"
        return environment._reset_rubric if plain else environment._reset_rubric_async
