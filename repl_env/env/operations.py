"""The operations of an environment, and the one that begins episodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from repl_env.common.threads import Offload
from repl_env.env.current_episode import (
    CurrentEpisode,
    EpisodeSlot,
    HiddenTask,
    Mode,
    SessionOpening,
)
from repl_env.env.options import (
    EpisodeEquipment,
    check_variables,
    episode_config,
    follow_up_config,
    subcall_settings,
)
from repl_env.env.saving import EpisodeContinuation
from repl_env.env.step import RewardStep, Scored, StepOperations
from repl_env.episode import effects
from repl_env.episode.answers import validator
from repl_env.episode.call_options import RESET_NAMES, FollowUpOptions, ResetOptions
from repl_env.episode.effects import Effects, OnOutput
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.llm.spec import LLM
from repl_env.models import REPLAction, REPLObservation
from repl_env.rlm.answerers import SubcallSettings
from repl_sandbox.types import NO_ANSWER, Missing

if TYPE_CHECKING:
    from repl_env.env.async_episode import ChildEnvFactory


# `EpisodeReset`: begins episodes, in a new session or in the current one.


class EpisodeReset:
    """Begins the episodes in `slot`."""

    def __init__(
        self,
        slot: EpisodeSlot,
        equipment: EpisodeEquipment,
        scorer: RewardStep,
        session_opening: SessionOpening,
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._session_opening = scorer, session_opening

    def begin_episode(self, mode: Mode, arguments: Mapping[str, Any]) -> Effects[REPLObservation]:
        """Begin an episode in a new session; see `REPLEnvironment.reset`.

        Args:
            mode: whether the calls on the episode block or are awaited.
            arguments: by name; those that `ResetOptions` lacks are ignored.
        """
        settings = self._equipment.settings
        options = ResetOptions.of(arguments)
        subcalls = subcall_settings(options, settings)
        check = yield Offload(validator, options.answer_schema)
        helpers = self._equipment.helpers(subcalls)
        config = episode_config(options, settings, helpers, self._equipment.sandbox_provider, check)
        self._scorer.check_expected(options.expected_answer)
        if mode == "plain":
            self._slot.check_mode(mode)
        with self._slot.reset_guard:  # two concurrent resets would leak the session of one
            current = yield from self._begin(mode, options, config, subcalls)
        observation = current.episode.first_observation()
        observation.metadata["ignored"] = sorted(arguments.keys() - RESET_NAMES)
        try:
            return (yield from self._scorer.transform(observation))
        except BaseException:
            # The caller has no first observation and gets an error, so no episode remains.
            yield from self._slot.abandon(current)
            raise

    def _begin(
        self, mode: Mode, options: ResetOptions, config: EpisodeConfig, subcalls: SubcallSettings
    ) -> Effects[CurrentEpisode]:
        """Replace the current episode by one with this configuration."""
        yield from self._slot.close_current()
        self._slot.closed = False
        yield from self._scorer.reset_rubric(None, mode, options.expected_answer)
        hidden_task = HiddenTask(options.expected_answer, options.answer_schema, subcalls)
        # The session holds the files; the configuration would keep them for the whole episode.
        episode_config = replace(config, files={}) if config.files else config
        current = CurrentEpisode(mode, Episode(episode_config), hidden_task)
        start = partial(
            effects.start_session,
            config.context.sandbox_provider or self._equipment.sandbox_provider,
            plain=mode == "plain",
            answers=self._equipment.settings.answers,
            config=config,
            seed=options.seed,
        )
        yield from self._session_opening.open(current, start)
        self._slot.current = current
        return current

    def follow_up(self, mode: Mode, options: FollowUpOptions) -> Effects[REPLObservation]:
        """Begin another episode in the current session; see `REPLEnvironment.follow_up`."""
        settings = self._equipment.settings
        current = self._slot.current_in(mode)
        variables: Mapping[str, Any] = {} if options.variables is None else options.variables
        check_variables(variables, settings.tools)
        self._scorer.check_expected(options.expected_answer)
        check = yield Offload(validator, options.answer_schema)
        config = follow_up_config(options, current.episode.config, settings, check)
        current.check_no_waiting_answer("follow up")
        with current.step_guard:
            for name, value in {**variables, "answer": dict(NO_ANSWER)}.items():
                yield partial(current.session.set, name, value)
                current.episode.names[name] = None
            yield from self._scorer.reset_rubric(current, mode, options.expected_answer)
            hidden_task = replace(
                current.hidden_task,
                expected_answer=options.expected_answer,
                answer_schema=options.answer_schema,
            )
            current.start_next(config, hidden_task)
        return (yield from self._scorer.transform(current.episode.first_observation()))


# `EpisodeOperations`: the operations of an environment, composed of parts.


class EpisodeEffects(Protocol):
    """Each call on an environment as effects; see the methods of `REPLEnvironment`."""

    @property
    def slot(self) -> EpisodeSlot:
        """The slot of the current episode."""

    def begin_episode(
        self, mode: Mode, arguments: Mapping[str, Any], /
    ) -> Effects[REPLObservation]:
        """Begin an episode in a new session."""

    def follow_up(self, mode: Mode, options: FollowUpOptions, /) -> Effects[REPLObservation]:
        """Begin another episode in the session that is there."""

    def take_step(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        extra_arguments: Mapping[str, Any],
        on_output: OnOutput | None = None,
        /,
    ) -> Effects[REPLObservation]:
        """Take an action."""

    def give_up(self, mode: Mode, /) -> Effects[REPLObservation]:
        """End the episode as if its iterations were used up."""

    def save(self, mode: Mode, path: str | os.PathLike[str], /) -> Effects[tuple[Missing, ...]]:
        """Write the episode to a file."""

    def load(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM, /
    ) -> Effects[tuple[Missing, ...]]:
        """Continue the episode in a file."""

    def rollback(self, mode: Mode, cells: int, /) -> Effects[tuple[str, ...]]:
        """Undo the last `cells` cells."""

    def branch(self, mode: Mode, seed: int | None, other: EpisodeSlot, /) -> Effects[None]:
        """Put a branch of the episode into another slot."""

    def close_current(self) -> Effects[None]:
        """End the session of the current episode, if there is one."""


class EpisodeOperations:
    """The episodes of one environment, one after another.

    Args:
        environment: a weak reference to the environment, whose transform and rubric score steps.
        children: makes the factory of environments for child runs.
    """

    def __init__(
        self,
        environment: Callable[[], Scored | None],
        equipment: EpisodeEquipment,
        children: Callable[[], ChildEnvFactory],
    ) -> None:
        self.slot = slot = EpisodeSlot()
        self.scorer = scorer = RewardStep(environment)
        session_opening = SessionOpening(equipment, children)
        steps = StepOperations(slot, scorer, equipment)
        resets = EpisodeReset(slot, equipment, scorer, session_opening)
        continuations = EpisodeContinuation(slot, equipment, scorer, session_opening)
        self.begin_episode, self.follow_up = resets.begin_episode, resets.follow_up
        self.take_step, self.give_up = steps.take_step, steps.give_up
        self.save, self.load = continuations.save, continuations.load
        self.rollback = continuations.rollback
        self.branch, self.close_current = continuations.branch, slot.close
