"""`EpisodeTurns`: what each call on an environment does, as turns (`repl_env.turns`).

Written once for plain and asynchronous callers; `REPLEnvironment` has the calls. The rules of an
episode are in `repl_env.episode`; here are its session, its sub-calls, its scores, and what becomes
of it when what it runs on breaks.
"""

from __future__ import annotations

import copy
import math
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from repl_env import cells, resuming, sandboxes
from repl_env.answers import validator
from repl_env.aside import Aside, Blocking
from repl_env.episode import Episode, Terms
from repl_env.errors import OURS, EpisodeAborted, EpisodeDone, NotReset
from repl_env.interfaces import Environment
from repl_env.llm import LLM
from repl_env.models import REPLAction, REPLObservation, REPLState, StepResult, give, result_of
from repl_env.resuming import Asked
from repl_env.rlm.budget import Spent
from repl_env.rubrics import REPLRubric, Rubric
from repl_env.settings import REQUEST_NAMES, Request, Settings, check_variables
from repl_env.subcalls import Provider, SubcallSettings, functions
from repl_env.turns import Turn
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.types import Answer, Missing, check_seconds

if TYPE_CHECKING:
    from repl_env.local import AsyncLocalREPLEnv
    from repl_env.rlm.calling import Calling
    from repl_env.rlm.ledger import Account
    from repl_env.rlm.model import ChatModel

Mode: TypeAlias = Literal["plain", "async"]

# The arguments of a reset that OpenEnv has by position.
POSITIONAL = ("seed", "episode_id", "context", "task_prompt", "hf_token", "llm_model")

# What an environment has of its current episode, but for the rubric's part.
_OF_EPISODE = ("_mode", "_state", "_executor", "_calling", "_asked", "_last", "_branches")

# Parts of a budget that end an episode when they are used up, as its cells spend them. Without
# calls or tokens the code can go on, and the policy may have enough for an answer.
_ENDING = {"seconds": "wall time", "cpu_seconds": "CPU time"}


class EpisodeTurns(Environment[REPLAction, REPLObservation, REPLState]):
    """The current episode of an environment, and the turns that begin, play and end it."""

    settings: Settings
    _provider: Provider
    _calling: Calling | None  # None too if nothing answers sub-calls
    _sandboxes: sandboxes.Source
    _mode: Mode
    # OpenEnv's names for the two things an episode is made of; None between episodes.
    _state: Episode | None
    _executor: Any
    _asked: Asked | None
    _last: StepResult[REPLObservation] | None
    _branches: int  # of this episode, made so far

    @abstractmethod
    def child(self, provider: Provider) -> AsyncLocalREPLEnv:
        """An environment like this one, without an episode, whose sub-calls `provider` answers."""

    @abstractmethod
    def model(self, llm: LLM) -> ChatModel:
        """The model that `llm`, which a reset was given, speaks of."""

    def _resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Turn[REPLObservation]:
        known = {name: more[name] for name in REQUEST_NAMES & more.keys()}
        request = Request(**dict(zip(POSITIONAL, given, strict=True)), **known)
        subcalls = request.subcalls(self.settings)
        check = yield Aside(validator, request.answer_schema)
        terms = request.terms(self.settings, self._helpers(subcalls), self._sandboxes, check)
        take_expected = self._expecting(request.expected_answer)
        if mode == "plain":
            self._check_mode(mode)
        yield from self._leaving()
        yield self._reset_rubric if mode == "plain" else self._reset_rubric_async
        if take_expected is not None:
            take_expected(request.expected_answer)
        self._asked = Asked(request.expected_answer, request.answer_schema, subcalls)
        start = partial(cells.starting, terms=terms, seed=request.seed)
        episode = yield from self._beginning(mode, terms, subcalls, start)
        observation = episode.greet()
        observation.metadata["ignored"] = sorted(more.keys() - known.keys())
        return (yield from self._transforming(observation))

    def _beginning(
        self,
        mode: Mode,
        terms: Terms,
        subcalls: SubcallSettings,
        start: Callable[..., Turn[Any]],
    ) -> Turn[Episode]:
        """Open a session as `start` does it, and make it the current episode's."""
        # The session has the files when it begins; here they would stay as long as the episode.
        episode = Episode(replace(terms, files={}))
        calling = self._provider.begin(subcalls, self._subcall_failed, self)
        session = None
        try:
            session = yield from start(
                terms.context.source or self._sandboxes,
                plain=mode == "plain",
                host={**functions(calling), **self.settings.tools},
                answers=self.settings.answers,
                on_answer=self._answered,
            )
            episode.held_by(session.isolation)
        except BaseException:
            yield from _ending(session, calling, mode)
            raise
        self._mode, self._state, self._executor = mode, episode, session
        self._calling = calling
        return episode

    def _following(
        self, mode: Mode, request: Request, variables: Mapping[str, Any]
    ) -> Turn[REPLObservation]:
        before, asked = self._episode(), self._asked
        assert asked is not None
        self._check_mode(mode)
        check_variables(variables, self.settings.tools)
        take_expected = self._expecting(request.expected_answer)
        check = yield Aside(validator, request.answer_schema)
        terms = request.following(before.terms, self.settings, check)
        yield self._reset_rubric if mode == "plain" else self._reset_rubric_async
        if take_expected is not None:
            take_expected(request.expected_answer)
        episode = resuming.followed(before, terms)
        for name, value in {**variables, "answer": {"content": "", "ready": False}}.items():
            yield partial(self._executor.set, name, value)
            episode.names[name] = None
        self._asked = replace(
            asked, expected_answer=request.expected_answer, answer_schema=request.answer_schema
        )
        self._state, self._last = episode, None
        return (yield from self._transforming(episode.greet()))

    def _expecting(self, expected: Any) -> Callable[[Any], None] | None:
        """How the rubric is told what is expected; TypeError if it cannot be told."""
        take: Callable[[Any], None] | None = getattr(self.rubric, "set_expected", None)
        if take is None and expected is not None:
            raise TypeError(f"expected_answer: {type(self.rubric).__name__} takes none")
        return take

    def _helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        return (*sorted(self._provider.names(subcalls)), *self.settings.tools)

    def _answered(self, answer: Answer) -> Awaitable[None] | None:
        # Not bound to one episode: another may go on in the same session.
        sheet = self._episode().sheet
        if self._mode == "async" and sheet.judges(answer):
            return sheet.offer_aside(answer)
        sheet.offer(answer)
        return None

    def _subcall_failed(self, error: Exception) -> None:
        if self._state is not None:
            self._state.subcall_failed(error)

    def _saving(self, mode: Mode, path: str | os.PathLike[str]) -> Turn[tuple[Missing, ...]]:
        episode, asked = self._episode(), self._asked
        assert asked is not None
        self._check_mode(mode)
        spent = None if self._calling is None else self._calling.account.total
        saved = resuming.snapshot(
            episode, asked, self.settings.answers, self._last, self.rubric, spent
        )
        return (yield from resuming.saving(self._executor, episode, saved, path, mode == "plain"))

    def _loading(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM
    ) -> Turn[tuple[Missing, ...]]:
        if mode == "plain":
            self._check_mode(mode)
        file = yield from resuming.reading(path, mode == "plain")
        helpers = self._helpers(SubcallSettings(llm))
        asked = resuming.asked(
            file.episode, helpers, self.settings.answers, self.rubric, schema, llm
        )
        check = yield Aside(validator, asked.answer_schema)
        terms = file.episode.terms(file.context, check)
        last = file.episode.last_observation()
        current = {name: getattr(self, name) for name in _OF_EPISODE}
        known = resuming.known(self.rubric, self._asked)
        start = partial(resuming.restoring, file=file)
        episode = yield from self._beginning(mode, terms, asked.subcalls, start)
        missing: tuple[Missing, ...] = self._executor.missing
        file.episode.resume(episode, missing)
        if self._calling is not None and file.episode.spent is not None:
            self._calling.account.begin_with(Spent(**file.episode.spent.model_dump()))
        self._asked, self._branches = asked, 0
        self._last = None if last is None else result_of(last)
        try:
            yield self._reset_rubric if mode == "plain" else self._reset_rubric_async
            resuming.remind(self.rubric, file.episode.expected_answer, file.episode.rubric)
        except BaseException:
            yield from self._going_back(mode, current, known)
            raise
        yield from _ending(current["_executor"], current["_calling"], current["_mode"])
        return missing

    def _going_back(
        self, mode: Mode, current: Mapping[str, Any], known: tuple[Any, Any]
    ) -> Turn[None]:
        """Leave the session that was loaded; the episode before goes on as it was."""
        session, calling = self._executor, self._calling
        vars(self).update(current)
        try:
            yield from _ending(session, calling, mode)
        finally:
            # It is the rubric that has just failed, which is what the caller is told.
            with suppress(Exception):
                yield self._reset_rubric if mode == "plain" else self._reset_rubric_async
                resuming.remind(self.rubric, *known)

    def _branching(self, mode: Mode, seed: int | None) -> Turn[Self]:
        episode, asked = self._episode(), self._asked
        assert asked is not None
        self._check_mode(mode)
        other = copy.copy(self)
        other.rubric = own_rubric(self.rubric)
        count = self._branches + 1
        branch = resuming.copied(episode, f"{episode.terms.episode_id}/{count}")
        calling = self._provider.begin(asked.subcalls, other._subcall_failed, other)
        if calling is not None and self._calling is not None:
            calling.account.begin_with(self._calling.account.total)
        session = None
        try:
            session = yield partial(
                self._executor.branch,
                seed=seed,
                host={**functions(calling), **self.settings.tools},
                on_answer=other._answered,
            )
            branch.held_by(session.isolation)
        except BaseException:
            yield from _ending(session, calling, mode)
            raise
        self._branches = count
        other._state, other._executor, other._branches = branch, session, 0
        other._calling = calling
        if self._last is not None:
            other._last = copy.deepcopy(self._last)
        return other

    def _leaving(self) -> Turn[None]:
        session, self._executor = self._executor, None
        calling, self._calling = self._calling, None
        mode, self._state, self._last = self._mode, None, None
        self._asked, self._branches = None, 0
        yield from _ending(session, calling, mode)

    def _stepping(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        more: Mapping[str, Any],
        on_output: cells.OnOutput | None = None,
    ) -> Turn[REPLObservation]:
        episode = self._episode()
        self._check_mode(mode)
        if self._last is not None:
            raise EpisodeDone(self._last)
        if not isinstance(action, REPLAction):
            raise TypeError(f"action must be a REPLAction, not {type(action).__name__}")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        try:
            observation = yield from self._taking(episode, action, timeout_s, on_output)
        except SessionBusy:
            raise
        except SandboxError as error:
            yield from self._abandoning()
            raise EpisodeAborted("sandbox", str(error)) from error
        if more:
            observation.metadata["ignored"] = sorted(more)
        return (yield from self._scoring(mode, action, observation))

    def _giving_up(self, mode: Mode) -> Turn[REPLObservation]:
        """The end of the episode, as when the iterations are used up."""
        episode = self._episode()
        self._check_mode(mode)
        if self._last is not None:
            raise EpisodeDone(self._last)
        observation = episode.going_no_further()
        observation = yield from cells.giving_up(self._executor, episode, observation)
        return (yield from self._scoring(mode, REPLAction(code=""), observation))

    def _taking(
        self,
        episode: Episode,
        action: REPLAction,
        timeout_s: float | None,
        on_output: cells.OnOutput | None,
    ) -> Turn[REPLObservation]:
        """What an action comes to, before it is scored."""
        calling = self._calling
        if action.is_final:
            observation = episode.submit((yield Aside(episode.weighed, action.final_answer)))
        elif calling is None:
            observation = yield from cells.running(
                self._executor, episode, action.code, timeout_s, on_output
            )
        else:
            observation = yield from self._paying(
                calling, episode, action.code, timeout_s, on_output
            )
        if episode.last_iteration:
            observation = yield from cells.giving_up(self._executor, episode, observation)
        return observation

    def _paying(
        self,
        calling: Calling,
        episode: Episode,
        code: str,
        timeout_s: float | None,
        on_output: cells.OnOutput | None,
    ) -> Turn[REPLObservation]:
        """Run a cell within what is left of the budget, which ends the episode when it is over."""
        account = calling.account
        calling.cell = episode.cells + 1
        left = account.seconds_left()
        if left is not None and left > 0:
            timeout_s = left if timeout_s is None else min(timeout_s, left)
        observation = yield from cells.running(self._executor, episode, code, timeout_s, on_output)
        account.spend_cpu(observation.metadata["usage"]["cpu_seconds"])
        observation.metadata["spent"] = asdict(account.total)
        used_up = _used_up(account)
        if used_up is not None and not episode.done:
            over = f"Budget used up: {used_up}."
            observation = yield from cells.giving_up(self._executor, episode, observation, over)
        return observation

    def _scoring(
        self, mode: Mode, action: REPLAction, observation: REPLObservation
    ) -> Turn[REPLObservation]:
        # Latched first: whatever a transform or rubric raises, nothing is run or scored any more.
        self._latch(observation)
        observation = yield from self._transforming(observation)
        if observation.error_kind in OURS:
            reward, parts = 0.0, {}
        else:
            apply = self._apply_rubric if mode == "plain" else self._apply_rubric_async
            reward = yield partial(apply, action, observation)
            parts = components(self.rubric, reward)
        if type(observation) is REPLObservation:
            give(observation, reward=reward)
        else:  # a transform's own
            observation.reward = reward
        observation.metadata["reward_components"] = parts
        self._latch(observation)
        return observation

    def _transforming(self, observation: REPLObservation) -> Turn[REPLObservation]:
        if self.transform is None:
            return observation
        changed: REPLObservation = yield Blocking(self._apply_transform, observation)
        return changed

    def _latch(self, observation: REPLObservation) -> None:
        if observation.done:
            self._last = result_of(observation)

    def _abandoning(self) -> Turn[None]:
        try:
            yield from self._leaving()
        except SandboxError:
            # The session is lost already; that is what the caller is told, by the error above.
            return

    # ── checks ───────────────────────────────────────────────────────────────────────────────────

    def _episode(self) -> Episode:
        if self._state is None:
            raise NotReset
        return self._state

    def _check_mode(self, mode: Mode) -> None:
        if self._executor is not None and mode != self._mode:
            other = "reset_async, step_async and close_async"
            plain = "reset, step and close"
            raise RuntimeError(
                f"this episode was begun by {'reset' if mode == 'async' else 'reset_async'}; "
                f"go on with {plain if mode == 'async' else other}"
            )


def _ending(session: Any, calling: Calling | None, mode: Mode) -> Turn[None]:
    """The end of what an episode has: its session, and its sub-calls."""
    try:
        if session is not None:
            yield session.close
    finally:
        if calling is not None:
            yield calling.close if mode == "plain" else calling.close_async


def own_rubric(rubric: Rubric | None) -> Rubric:
    """A copy of `rubric` for one environment; TypeError if it is none or cannot be copied."""
    if rubric is None:
        return REPLRubric()
    if isinstance(rubric, type) or not hasattr(rubric, "reset"):
        name = getattr(rubric, "__name__", repr(rubric))
        hint = "CustomMetricRubric(function) makes one of a function"
        raise TypeError(f"rubric must be a rubric, as ExactMatchRubric() is, not {name}; {hint}")
    try:
        return copy.deepcopy(rubric)
    except Exception as error:
        # Copying runs code of the rubric's, which may raise anything.
        raise TypeError(f"rubric must be copyable, one for each environment: {error}") from error


def components(rubric: Rubric | None, reward: float) -> dict[str, float]:
    """The named parts of a reward; they add up to it."""
    if rubric is None:
        return {}
    tell = getattr(rubric, "components", None)
    told = tell() if callable(tell) else {}
    if not isinstance(told, Mapping):
        name, kind = type(rubric).__name__, type(told).__name__
        raise TypeError(f"{name}.components() must return parts by their names, not {kind}")
    parts = {name: float(part) for name, part in told.items()}  # numpy's and torch's are no JSON
    if math.isclose(sum(parts.values()), reward, abs_tol=1e-9):
        return parts
    return {type(rubric).__name__: reward}


def _used_up(account: Account) -> str | None:
    """What an episode cannot go on without and has no more of."""
    left = account.left()
    for field, name in _ENDING.items():
        if (amount := getattr(left, field)) is not None and amount <= 0:
            return name
    return None
