"""`EpisodeReset`: begins episodes, in a new session or in the current one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from repl_env.concurrency.offload import Offload
from repl_env.env.lifecycle.current_episode import CurrentEpisode, HiddenTask, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.env.lifecycle.scorer import RewardStep
from repl_env.env.lifecycle.session_opening import SessionOpening
from repl_env.env.options import REQUEST_NAMES, ResetRequest, check_variables
from repl_env.episode import session_effects
from repl_env.episode.answers import validator
from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.models import REPLObservation
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings

# OpenEnv's positional arguments of a reset.
POSITIONAL = ("seed", "episode_id", "context", "task_prompt", "hf_token", "llm_model")


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

    def begin_episode(
        self, mode: Mode, positional: tuple[Any, ...], extra_arguments: Mapping[str, Any]
    ) -> Effects[REPLObservation]:
        """Begin an episode in a new session; see `REPLEnvironment.reset`.

        Args:
            mode: whether the calls on the episode block or are awaited.
            positional: the arguments of `POSITIONAL`.
            extra_arguments: keyword arguments; those that `ResetRequest` lacks are ignored.
        """
        settings = self._equipment.settings
        known = {name: extra_arguments[name] for name in REQUEST_NAMES & extra_arguments.keys()}
        request = ResetRequest(**dict(zip(POSITIONAL, positional, strict=True)), **known)
        subcalls = request.subcalls(settings)
        check = yield Offload(validator, request.answer_schema)
        helpers = self._equipment.helpers(subcalls)
        config = request.episode_config(settings, helpers, self._equipment.sandbox_provider, check)
        self._scorer.check_expected(request.expected_answer)
        if mode == "plain":
            self._slot.check_mode(mode)
        with self._slot.reset_guard:  # two concurrent resets would leak the session of one
            current = yield from self._begin(mode, request, config, subcalls)
        observation = current.episode.first_observation()
        observation.metadata["ignored"] = sorted(extra_arguments.keys() - known.keys())
        try:
            return (yield from self._scorer.transform(observation))
        except BaseException:
            # The caller has no first observation and gets an error, so no episode remains.
            yield from self._slot.abandon(current)
            raise

    def _begin(
        self, mode: Mode, request: ResetRequest, config: EpisodeConfig, subcalls: SubcallSettings
    ) -> Effects[CurrentEpisode]:
        """Replace the current episode by one with this configuration."""
        yield from self._slot.close_current()
        yield from self._scorer.reset_rubric(None, mode, request.expected_answer)
        hidden_task = HiddenTask(request.expected_answer, request.answer_schema, subcalls)
        # The session holds the files; the configuration would keep them for the whole episode.
        kept = replace(config, files={}) if config.files else config
        current = CurrentEpisode(mode, Episode(kept), hidden_task)
        start = partial(
            session_effects.start_session,
            config.context.sandbox_provider or self._equipment.sandbox_provider,
            plain=mode == "plain",
            answers=self._equipment.settings.answers,
            config=config,
            seed=request.seed,
        )
        yield from self._session_opening.open(current, start)
        self._slot.current = current
        return current

    def follow_up(
        self, mode: Mode, request: ResetRequest, given: Mapping[str, Any] | None
    ) -> Effects[REPLObservation]:
        """Begin another episode in the current session, with the variables `given`."""
        settings = self._equipment.settings
        current = self._slot.current_in(mode)
        variables = {} if given is None else given
        check_variables(variables, settings.tools)
        self._scorer.check_expected(request.expected_answer)
        check = yield Offload(validator, request.answer_schema)
        config = request.follow_up_config(current.episode.config, settings, check)
        current.check_no_waiting_answer("follow up")
        with current.step_guard:
            for name, value in {**variables, "answer": {"content": "", "ready": False}}.items():
                yield partial(current.session.set, name, value)
                current.episode.names[name] = None
            yield from self._scorer.reset_rubric(current, mode, request.expected_answer)
            hidden_task = replace(
                current.hidden_task,
                expected_answer=request.expected_answer,
                answer_schema=request.answer_schema,
            )
            current.start_next(config, hidden_task)
        return (yield from self._scorer.transform(current.episode.first_observation()))
