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
        opening: SessionOpening,
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._opening = scorer, opening

    def resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Effects[REPLObservation]:
        """Begin an episode in a new session; see `REPLEnvironment.reset`.

        Args:
            mode: whether the calls on the episode block or are awaited.
            given: the arguments of `POSITIONAL`.
            more: keyword arguments; those that `ResetRequest` lacks are ignored.
        """
        settings = self._equipment.settings
        known = {name: more[name] for name in REQUEST_NAMES & more.keys()}
        request = ResetRequest(**dict(zip(POSITIONAL, given, strict=True)), **known)
        subcalls = request.subcalls(settings)
        check = yield Offload(validator, request.answer_schema)
        helpers = self._equipment.helpers(subcalls)
        terms = request.terms(settings, helpers, self._equipment.source, check)
        self._scorer.check_expected(request.expected_answer)
        if mode == "plain":
            self._slot.check_mode(mode)
        with self._slot.at_reset:  # two concurrent resets would leak the session of one
            current = yield from self._beginning(mode, request, terms, subcalls)
        observation = current.episode.greet()
        observation.metadata["ignored"] = sorted(more.keys() - known.keys())
        try:
            return (yield from self._scorer.transforming(observation))
        except BaseException:
            # The caller has no first observation and gets an error, so no episode remains.
            yield from self._slot.abandoning(current)
            raise

    def _beginning(
        self, mode: Mode, request: ResetRequest, terms: EpisodeConfig, subcalls: SubcallSettings
    ) -> Effects[CurrentEpisode]:
        """Replace the current episode by one with this configuration."""
        yield from self._slot.leaving()
        yield from self._scorer.reminding(None, mode, request.expected_answer)
        asked = HiddenTask(request.expected_answer, request.answer_schema, subcalls)
        # The session holds the files; the configuration would keep them for the whole episode.
        kept = replace(terms, files={}) if terms.files else terms
        current = CurrentEpisode(mode, Episode(kept), asked)
        start = partial(
            session_effects.start_session,
            terms.context.source or self._equipment.source,
            plain=mode == "plain",
            answers=self._equipment.settings.answers,
            terms=terms,
            seed=request.seed,
        )
        yield from self._opening.opening(current, start)
        self._slot.current = current
        return current

    def following(
        self, mode: Mode, request: ResetRequest, given: Mapping[str, Any] | None
    ) -> Effects[REPLObservation]:
        """Begin another episode in the current session, with the variables `given`."""
        settings = self._equipment.settings
        current = self._slot.begun_in(mode)
        variables = {} if given is None else given
        check_variables(variables, settings.tools)
        self._scorer.check_expected(request.expected_answer)
        check = yield Offload(validator, request.answer_schema)
        terms = request.following(current.episode.terms, settings, check)
        current.check_settled("follow up")
        with current.at_step:
            for name, value in {**variables, "answer": {"content": "", "ready": False}}.items():
                yield partial(current.session.set, name, value)
                current.episode.names[name] = None
            yield from self._scorer.reminding(current, mode, request.expected_answer)
            asked = replace(
                current.asked,
                expected_answer=request.expected_answer,
                answer_schema=request.answer_schema,
            )
            current.follow(terms, asked)
        return (yield from self._scorer.transforming(current.episode.greet()))
