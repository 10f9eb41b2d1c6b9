"""`Beginnings`: how an episode begins, in a new session or in the one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from repl_env import cells
from repl_env.answers import validator
from repl_env.aside import Aside
from repl_env.current_episode import Asked, CurrentEpisode, Mode
from repl_env.env.equipment import Equipment
from repl_env.env.opening import Opening
from repl_env.env.scorer import Scorer
from repl_env.env.slot import EpisodeSlot
from repl_env.episode import Episode, Terms
from repl_env.models import REPLObservation
from repl_env.settings import REQUEST_NAMES, Request, check_variables
from repl_env.subcalls import SubcallSettings
from repl_env.turns import Turn

# The arguments of a reset that OpenEnv has by position.
POSITIONAL = ("seed", "episode_id", "context", "task_prompt", "hf_token", "llm_model")


class Beginnings:
    """Begins the episodes in `slot`."""

    def __init__(
        self, slot: EpisodeSlot, equipment: Equipment, scorer: Scorer, opening: Opening
    ) -> None:
        self._slot, self._equipment = slot, equipment
        self._scorer, self._opening = scorer, opening

    def resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Turn[REPLObservation]:
        """Begin an episode in a new session; see `REPLEnvironment.reset`.

        Args:
            mode: whether the calls on the episode are plain ones or awaited.
            given: the arguments of `POSITIONAL`.
            more: arguments by name; those that `Request` does not have are ignored.
        """
        settings = self._equipment.settings
        known = {name: more[name] for name in REQUEST_NAMES & more.keys()}
        request = Request(**dict(zip(POSITIONAL, given, strict=True)), **known)
        subcalls = request.subcalls(settings)
        check = yield Aside(validator, request.answer_schema)
        helpers = self._equipment.helpers(subcalls)
        terms = request.terms(settings, helpers, self._equipment.source, check)
        self._scorer.check_expected(request.expected_answer)
        if mode == "plain":
            self._slot.check_mode(mode)
        with self._slot.at_reset:  # of two at once, nobody would end the session of one
            current = yield from self._beginning(mode, request, terms, subcalls)
        observation = current.episode.greet()
        observation.metadata["ignored"] = sorted(more.keys() - known.keys())
        try:
            return (yield from self._scorer.transforming(observation))
        except BaseException:
            # The caller has no first observation, and is told that there is no episode.
            yield from self._slot.abandoning(current)
            raise

    def _beginning(
        self, mode: Mode, request: Request, terms: Terms, subcalls: SubcallSettings
    ) -> Turn[CurrentEpisode]:
        """The episode of these terms as the current one, in place of the last."""
        yield from self._slot.leaving()
        yield from self._scorer.reminding(None, mode, request.expected_answer)
        asked = Asked(request.expected_answer, request.answer_schema, subcalls)
        # The session has the files when it begins; here they would stay as long as the episode.
        kept = replace(terms, files={}) if terms.files else terms
        current = CurrentEpisode(mode, Episode(kept), asked)
        start = partial(
            cells.starting,
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
        self, mode: Mode, request: Request, given: Mapping[str, Any] | None
    ) -> Turn[REPLObservation]:
        """Begin another episode in the session that is there, with the variables `given`."""
        settings = self._equipment.settings
        current = self._slot.begun_in(mode)
        variables = {} if given is None else given
        check_variables(variables, settings.tools)
        self._scorer.check_expected(request.expected_answer)
        check = yield Aside(validator, request.answer_schema)
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
