"""`EpisodeReset`: begins episodes, in a new session or in the current one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from repl_env.concurrency.offload import Offload
from repl_env.env.episode_request import episode_config, follow_up_config, subcall_settings
from repl_env.env.lifecycle.current_episode import CurrentEpisode, HiddenTask, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.env.lifecycle.scorer import RewardStep
from repl_env.env.lifecycle.session_opening import SessionOpening
from repl_env.env.options import check_variables
from repl_env.episode import session_effects
from repl_env.episode.answers import validator
from repl_env.episode.call_options import RESET_NAMES, FollowUpOptions, ResetOptions
from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.models import REPLObservation
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings


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
            session_effects.start_session,
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
            for name, value in {**variables, "answer": {"content": "", "ready": False}}.items():
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
