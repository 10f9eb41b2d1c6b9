"""`EpisodeTurns`: how an episode begins, branches, is saved and gone on with (`repl_env.turns`).

Written once for plain and asynchronous callers; `REPLEnvironment` has the calls. Its steps are in
`repl_env.episode_steps`, its rules in `repl_env.episode`.
"""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from repl_env import cells, resuming, sandboxes, scoring
from repl_env.answers import validator
from repl_env.arguments import check_path
from repl_env.aside import Aside
from repl_env.current_episode import (
    Asked,
    CurrentEpisode,
    Mode,
    OneAtATime,
    at_one_reset,
    weakly,
)
from repl_env.episode import Episode, Terms
from repl_env.episode_steps import EpisodeSteps
from repl_env.llm import LLM
from repl_env.models import REPLObservation
from repl_env.settings import REQUEST_NAMES, Request, Settings, check_variables
from repl_env.subcalls import Provider, SubcallSettings, functions
from repl_env.turns import Turn
from repl_sandbox.types import Missing

if TYPE_CHECKING:
    from repl_env.children import Children
    from repl_env.rlm.budget import Spent

# The arguments of a reset that OpenEnv has by position.
POSITIONAL = ("seed", "episode_id", "context", "task_prompt", "hf_token", "llm_model")


class EpisodeTurns(EpisodeSteps):
    """The turns that make an episode the current one of an environment, besides those of steps."""

    settings: Settings
    _provider: Provider
    _sandboxes: sandboxes.Source
    _at_reset: OneAtATime

    @abstractmethod
    def _children(self) -> Children:
        """What makes the environments of the runs below an episode of this one."""

    def _resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Turn[REPLObservation]:
        known = {name: more[name] for name in REQUEST_NAMES & more.keys()}
        request = Request(**dict(zip(POSITIONAL, given, strict=True)), **known)
        subcalls = request.subcalls(self.settings)
        check = yield Aside(validator, request.answer_schema)
        terms = request.terms(self.settings, self._helpers(subcalls), self._sandboxes, check)
        self._check_expected(request.expected_answer)
        if mode == "plain":
            self._check_mode(mode)
        with self._at_reset:  # of two at once, nobody would end the session of one
            current = yield from self._beginning(mode, request, terms, subcalls)
        observation = current.episode.greet()
        observation.metadata["ignored"] = sorted(more.keys() - known.keys())
        try:
            return (yield from self._transforming(observation))
        except BaseException:
            # Whoever asked has no first observation, and is told that there is no episode.
            yield from self._abandoning(current)
            raise

    def _beginning(
        self, mode: Mode, request: Request, terms: Terms, subcalls: SubcallSettings
    ) -> Turn[CurrentEpisode]:
        """The episode of these terms as the current one, in place of the last."""
        yield from self._leaving()
        yield from self._reminding(mode, request.expected_answer)
        asked = Asked(request.expected_answer, request.answer_schema, subcalls)
        # The session has the files when it begins; here they would stay as long as the episode.
        kept = replace(terms, files={}) if terms.files else terms
        current = CurrentEpisode(mode, Episode(kept), asked)
        start = partial(
            cells.starting,
            terms.context.source or self._sandboxes,
            plain=mode == "plain",
            answers=self.settings.answers,
            terms=terms,
            seed=request.seed,
        )
        yield from self._opening(current, start)
        self._current = current
        return current

    def _opening(
        self,
        current: CurrentEpisode,
        start: Callable[..., Turn[Any]],
        spent: Spent | None = None,
    ) -> Turn[None]:
        """Open the session of `current` as `start` does it; its sub-calls have `spent` already."""
        try:
            failed = weakly(current.subcall_failed)
            width = self.settings.max_concurrent_subcalls
            subcalls, calling = replace(current.asked.subcalls, width=width), None
            if self._provider.names(subcalls):
                calling = self._provider.begin(subcalls, failed, self._children())
            current.calling = calling
            if calling is not None and spent is not None:
                calling.account.begin_with(spent)
            host = {**functions(calling), **self.settings.tools}
            current.session = yield from start(host=host, on_answer=weakly(current.answered))
            current.episode.held_by(current.session.isolation)
        except BaseException:
            yield from current.ending()
            raise

    def _following(
        self, mode: Mode, request: Request, given: Mapping[str, Any] | None
    ) -> Turn[REPLObservation]:
        current = self._begun_in(mode)
        variables = {} if given is None else given
        check_variables(variables, self.settings.tools)
        self._check_expected(request.expected_answer)
        check = yield Aside(validator, request.answer_schema)
        terms = request.following(current.episode.terms, self.settings, check)
        current.check_settled("follow up")
        with current.at_step:
            for name, value in {**variables, "answer": {"content": "", "ready": False}}.items():
                yield partial(current.session.set, name, value)
                current.episode.names[name] = None
            yield from self._reminding(mode, request.expected_answer)
            asked = replace(
                current.asked,
                expected_answer=request.expected_answer,
                answer_schema=request.answer_schema,
            )
            current.follow(terms, asked)
        return (yield from self._transforming(current.episode.greet()))

    def _saving(self, mode: Mode, path: str | os.PathLike[str]) -> Turn[tuple[Missing, ...]]:
        check_path(path, "path")
        current = self._begun_in(mode)
        saved = resuming.snapshot(current, self.settings.answers, self.rubric)
        plain = mode == "plain"
        return (yield from resuming.saving(current.session, current.episode, saved, path, plain))

    def _loading(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM
    ) -> Turn[tuple[Missing, ...]]:
        check_path(path, "path")
        if mode == "plain":
            self._check_mode(mode)
        file = yield from resuming.reading(path, mode == "plain")
        saved, answers = file.episode, self.settings.answers
        helpers = self._helpers(SubcallSettings(llm))
        asked = resuming.asked(saved, helpers, answers, self.rubric, schema, llm)
        check = yield Aside(validator, asked.answer_schema)
        memory = int(self._sandboxes.limits.memory)
        loaded = resuming.resumed(mode, file, asked, check, memory)
        source = file.context.source or self._sandboxes
        start = partial(
            resuming.restoring, source, plain=mode == "plain", answers=answers, file=file
        )
        with self._at_reset:
            yield from self._opening(loaded, start, resuming.spent_in(saved))
            missing: tuple[Missing, ...] = loaded.session.missing
            try:
                saved.resume(loaded.episode, missing)
                yield from self._reminding(mode, saved.expected_answer, saved.rubric)
            except BaseException:
                yield from loaded.ending()
                raise
            before, self._current = self._current, loaded
        if before is not None:
            yield from before.ending()
        return missing

    def _branching(self, mode: Mode, seed: int | None) -> Turn[Self]:
        current = self._begun_in(mode)
        other = self._beside()
        other.rubric = scoring.own_rubric(self.rubric)
        branch = current.branch()
        start = partial(cells.branching, current.session, seed=seed)
        yield from other._opening(branch, start, current.spent)
        current.branches += 1
        other._current = branch
        return other

    def _beside(self) -> Self:
        """Another environment with all of this one's but for its episode."""
        other = copy.copy(self)
        other._current, other._at_reset = None, at_one_reset()
        return other

    def _helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        return (*sorted(self._provider.names(subcalls)), *self.settings.tools)

    # ── the rubric ───────────────────────────────────────────────────────────────────────────────

    def _check_expected(self, expected: Any) -> None:
        """TypeError if the rubric cannot be told what is expected."""
        if expected is not None and not scoring.takes_expected(self.rubric):
            raise TypeError(f"expected_answer: {type(self.rubric).__name__} takes none")

    def _reminding(self, mode: Mode, expected: Any, state: Any = None) -> Turn[None]:
        """Have the rubric forget the last episode, and know of this one what is given.

        If it fails, it is told again what it knew of the current episode, if there is one.
        """
        current = self._current
        kept = None if current is None else scoring.state_of(self.rubric)
        try:
            yield self._rubric_reset(mode)
            scoring.remind(self.rubric, expected, state)
        except BaseException:
            # That it failed is what the caller is told, not what it says to this.
            with suppress(Exception):
                if current is not None:
                    yield self._rubric_reset(mode)
                    scoring.remind(self.rubric, current.asked.expected_answer, kept)
            raise

    def _rubric_reset(self, mode: Mode) -> Callable[[], Any]:
        return self._reset_rubric if mode == "plain" else self._reset_rubric_async
