"""The episode that an environment has now: its rules, its session, its sub-calls, its end."""

from __future__ import annotations

import copy
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from weakref import WeakMethod

from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.models import REPLObservation, StepResult, result_of
from repl_env.rlm.subcalls.subcall_settings import SubcallSettings
from repl_sandbox.errors import SessionBusy
from repl_sandbox.types import Answer

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Spent
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls

T = TypeVar("T")
R = TypeVar("R")

Mode: TypeAlias = Literal["plain", "async"]


@dataclass(frozen=True, slots=True)
class HiddenTask:
    """What an episode was begun with and its rules do not know."""

    expected_answer: Any = field(repr=False)
    answer_schema: Any
    subcalls: SubcallSettings


class CallGuard:
    """A context manager that one caller at a time is in, of all threads and tasks.

    SessionBusy for the others: "`subject` is at another `work`", and what to do. They are not
    queued: the caller may be a function that the work itself waits for.
    """

    __slots__ = ("_lock", "_told")

    def __init__(self, subject: str, work: str) -> None:
        self._lock = threading.Lock()
        self._told = (
            f"{subject} at another {work}: wait until that has returned, with a lock around the "
            "calls, or give each thread or task an environment of its own; REPLVectorEnv steps "
            "many at once"
        )

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(self._told)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


at_one_step = partial(CallGuard, "the episode is", "step")
at_one_reset = partial(CallGuard, "the environment is", "reset or load")


@dataclass(slots=True, weakref_slot=True)
class CurrentEpisode:
    """An episode with what it runs on.

    Attributes:
        mode: whether its calls are plain ones or awaited.
        episode: its rules; another's, once it is followed by one in the same session.
        last: the result that ended it.
        session: None until it is open.
        subcalls: its sub-calls; None too if nothing answers any.
        branches: how many were made of it.
        at_step: to be entered for each step.
    """

    mode: Mode
    episode: Episode
    asked: HiddenTask
    last: StepResult[REPLObservation] | None = None
    session: Any = None
    subcalls: EpisodeSubcalls | None = None
    branches: int = 0
    at_step: CallGuard = field(default_factory=at_one_step)

    @property
    def spent(self) -> Spent | None:
        """What its sub-calls and cells have cost; None if that is not counted."""
        return None if self.subcalls is None else self.subcalls.account.total

    def branch(self) -> CurrentEpisode:
        """The same episode under the id of its next branch, without session and sub-calls."""
        self.check_settled("branch")
        branch = _copied(self.episode, f"{self.episode.terms.episode_id}/{self.branches + 1}")
        return CurrentEpisode(self.mode, branch, self.asked, copy.deepcopy(self.last))

    def follow(self, terms: EpisodeConfig, asked: HiddenTask) -> None:
        """Go on with a new episode: what the session has and counts goes on in it."""
        before, self.episode = self.episode, Episode(terms)
        self.episode.cells, self.episode.isolation = before.cells, before.isolation
        self.episode.names, self.episode.names_are_known = before.names, before.names_are_known
        self.asked, self.last = asked, None

    def check_settled(self, then: str) -> None:
        """ValueError if an answer of a cancelled step waits for the next one."""
        if self.episode.sheet.waiting:
            raise ValueError(
                f"an answer of a cancelled step waits for the next one; step, then {then}"
            )

    def check_mode(self, mode: Mode) -> None:
        """RuntimeError if it was begun by calls of the other kind."""
        if mode != self.mode:
            other = "reset_async, step_async and close_async"
            plain = "reset, step and close"
            raise RuntimeError(
                f"this episode was begun by {'reset' if mode == 'async' else 'reset_async'}; "
                f"go on with {plain if mode == 'async' else other}"
            )

    def latch(self, observation: REPLObservation) -> None:
        """Note the end of the episode: nothing is run or scored in it any more."""
        self.last = result_of(observation)

    def answered(self, answer: Answer) -> Awaitable[None] | None:
        """Note an answer that the code gives; what is awaited is its check, where it takes long."""
        sheet = self.episode.sheet
        if self.mode == "async" and sheet.judges(answer):
            return sheet.offer_aside(answer)
        sheet.offer(answer)
        return None

    def subcall_failed(self, error: Exception) -> None:
        """Note that a sub-call failed by no fault of the policy."""
        self.episode.subcall_failed(error)

    def ending(self) -> Effects[None]:
        """End what it runs on: its session, and its sub-calls."""
        try:
            if self.session is not None:
                yield self.session.close
        finally:
            if self.subcalls is not None:
                yield self.subcalls.close if self.mode == "plain" else self.subcalls.close_async


def weakly(method: Callable[[T], R]) -> Callable[[T], R | None]:
    """`method` for a session or its sub-calls, which the sandbox holds: they keep no episode alive.

    An environment that is dropped goes, with its context; and it is seen that nobody closed it.
    """
    held = WeakMethod(method)

    def call(given: T) -> R | None:
        found = held()
        return None if found is None else found(given)

    return call


def _copied(episode: Episode, episode_id: str) -> Episode:
    """The same episode under another id, with what happens to either from here on apart."""
    other = Episode(replace(episode.terms, episode_id=episode_id))
    for name in ("iteration", "cells", "stop_reason", "final", "masked", "names_are_known"):
        setattr(other, name, getattr(episode, name))
    other.totals = replace(episode.totals)
    other.names = dict(episode.names)
    return other
