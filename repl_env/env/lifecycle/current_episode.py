"""The current episode of an environment: its rules, its session, its sub-calls, its end."""

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
    """Settings of an episode that its rules do not see."""

    expected_answer: Any = field(repr=False)
    answer_schema: Any
    subcalls: SubcallSettings


class CallGuard:
    """A context manager that admits one caller at a time, of all threads and tasks.

    Others get SessionBusy: "`subject` is at another `work`", with advice. They are not queued: the
    caller may be a function that the work itself waits for.
    """

    __slots__ = ("_lock", "_message")

    def __init__(self, subject: str, work: str) -> None:
        self._lock = threading.Lock()
        self._message = (
            f"{subject} at another {work}: wait until that has returned, with a lock around the "
            "calls, or give each thread or task an environment of its own; REPLVectorEnv steps "
            "many at once"
        )

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(self._message)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


new_step_guard = partial(CallGuard, "the episode is", "step")
new_reset_guard = partial(CallGuard, "the environment is", "reset or load")


@dataclass(slots=True, weakref_slot=True)
class CurrentEpisode:
    """An episode with the resources that it runs on.

    Attributes:
        mode: whether its calls block or are awaited.
        episode: its rules; replaced when another episode follows in the same session.
        last: the result that ended it.
        session: None until it is open.
        subcalls: its sub-calls; also None if no provider answers any.
        branches: the number of branches made so far.
        step_guard: guards each step.
    """

    mode: Mode
    episode: Episode
    hidden_task: HiddenTask
    last: StepResult[REPLObservation] | None = None
    session: Any = None
    subcalls: EpisodeSubcalls | None = None
    branches: int = 0
    step_guard: CallGuard = field(default_factory=new_step_guard)

    @property
    def spent(self) -> Spent | None:
        """The cost of its sub-calls and cells; None if it is not counted."""
        return None if self.subcalls is None else self.subcalls.account.total

    def branch(self) -> CurrentEpisode:
        """Return the same episode under the id of its next branch, without session and sub-
        calls.
        """
        self.check_no_waiting_answer("branch")
        branch = _copied(self.episode, f"{self.episode.config.episode_id}/{self.branches + 1}")
        return CurrentEpisode(self.mode, branch, self.hidden_task, copy.deepcopy(self.last))

    def start_next(self, config: EpisodeConfig, hidden_task: HiddenTask) -> None:
        """Continue with a new episode in the same session, with its cell count and names."""
        previous, self.episode = self.episode, Episode(config)
        self.episode.cells, self.episode.isolation = previous.cells, previous.isolation
        self.episode.names, self.episode.names_are_known = previous.names, previous.names_are_known
        self.hidden_task, self.last = hidden_task, None

    def check_no_waiting_answer(self, then: str) -> None:
        """Raise ValueError if an answer of a cancelled step waits for the next one."""
        if self.episode.answer_sheet.waiting:
            raise ValueError(
                f"an answer of a cancelled step waits for the next one; step, then {then}"
            )

    def check_mode(self, mode: Mode) -> None:
        """Raise RuntimeError if calls of the other kind began the episode."""
        if mode != self.mode:
            other = "reset_async, step_async and close_async"
            plain = "reset, step and close"
            raise RuntimeError(
                f"this episode was begun by {'reset' if mode == 'async' else 'reset_async'}; "
                f"go on with {plain if mode == 'async' else other}"
            )

    def record_end(self, observation: REPLObservation) -> None:
        """Record the end of the episode: from here on, nothing in it is run or scored."""
        self.last = result_of(observation)

    def on_answer(self, answer: Answer) -> Awaitable[None] | None:
        """Record an answer that the code gives.

        A check that takes long is returned as an awaitable.
        """
        sheet = self.episode.answer_sheet
        if self.mode == "async" and sheet.judges_at_once(answer):
            return sheet.offer_async(answer)
        sheet.offer(answer)
        return None

    def subcall_failed(self, error: Exception) -> None:
        """Record that a sub-call failed through no fault of the policy."""
        self.episode.subcall_failed(error)

    def close(self) -> Effects[None]:
        """Close the session and the sub-calls."""
        try:
            if self.session is not None:
                yield self.session.close
        finally:
            if self.subcalls is not None:
                yield self.subcalls.close if self.mode == "plain" else self.subcalls.close_async


def weak_callback(method: Callable[[T], R]) -> Callable[[T], R | None]:
    """Return `method` with a weak reference to its object.

    The sandbox holds sessions and sub-calls, which must not keep an episode alive: a dropped
    environment is freed with its context, and the engine notices that nobody closed it.
    """
    method_ref = WeakMethod(method)

    def call(argument: T) -> R | None:
        found = method_ref()
        return None if found is None else found(argument)

    return call


def _copied(episode: Episode, episode_id: str) -> Episode:
    """Return the same episode under another id, with independent state."""
    other = Episode(replace(episode.config, episode_id=episode_id))
    for name in ("iteration", "cells", "stop_reason", "final", "masked", "names_are_known"):
        setattr(other, name, getattr(episode, name))
    other.totals = replace(episode.totals)
    other.names = dict(episode.names)
    return other
