"""The current episode of an environment: its rules, its session, its sub-calls, its end."""

from __future__ import annotations

import copy
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from weakref import WeakMethod

from repl_env.env.options import EpisodeEquipment
from repl_env.episode.effects import Effects
from repl_env.episode.rules import Episode, EpisodeConfig
from repl_env.errors import CLOSED, EpisodeAborted, EpisodeDone, NotReset
from repl_env.models import REPLObservation, StepResult, result_of
from repl_env.rlm.answerers import SubcallSettings, session_functions
from repl_sandbox.errors import SandboxError, SessionBusy
from repl_sandbox.types import Answer, AnyOutcome, TimedOut

if TYPE_CHECKING:
    from repl_env.env.async_episode import ChildEnvFactory
    from repl_env.rlm.budget import Spent
    from repl_env.rlm.subcalls import EpisodeSubcalls


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

    def judge_subcalls(self, outcome: AnyOutcome | None = None) -> Effects[None]:
        """Mask the episode if an endpoint fails for everybody; `outcome`: of the ended cell."""
        if self.subcalls is None:
            return
        out_of_time = isinstance(outcome, TimedOut) and outcome.clock == "host_call"
        kinds = self.subcalls.suspected_failures(out_of_time=out_of_time)
        if kinds:
            plain = self.mode == "plain"
            fails = self.subcalls.endpoint_fails if plain else self.subcalls.endpoint_fails_async
            self.episode.endpoint_failed = yield partial(fails, kinds)

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


# `EpisodeSlot`: the current episode of an environment, and the checks before each call.


class EpisodeSlot:
    """Holds the current episode, or none.

    Attributes:
        current: the episode; None between episodes.
        closed: whether the environment was closed after its last episode.
        reset_guard: guards the calls that put another episode here.
    """

    __slots__ = ("closed", "current", "reset_guard")

    def __init__(self) -> None:
        self.current: CurrentEpisode | None = None
        self.closed = False
        self.reset_guard = new_reset_guard()

    def require_current(self) -> CurrentEpisode:
        """Return the current episode; NotReset if none has begun."""
        if self.current is None:
            raise NotReset(CLOSED) if self.closed else NotReset
        return self.current

    def check_mode(self, mode: Mode) -> None:
        """Raise RuntimeError if calls of the other kind began the current episode."""
        if self.current is not None:
            self.current.check_mode(mode)

    def current_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a call of this kind.

        NotReset or RuntimeError otherwise.
        """
        current = self.current
        if current is None or current.mode != mode:
            current = self.require_current()
            current.check_mode(mode)
        return current

    def unfinished_in(self, mode: Mode) -> CurrentEpisode:
        """Return the current episode for a step of this kind.

        EpisodeDone if the episode is over.
        """
        current = self.current_in(mode)
        if current.last is not None:
            raise EpisodeDone(current.last)
        return current

    def check_current(self, current: CurrentEpisode) -> None:
        """Raise if another thread or task has ended or left `current` since it was looked up."""
        if self.current is not current:
            message = "the environment was closed or reset amid the step, by another call"
            raise EpisodeAborted("cancelled", f"{message}; that episode is over")
        if current.last is not None:
            raise EpisodeDone(current.last)

    def replace_current(self, current: CurrentEpisode) -> Effects[None]:
        """Make `current` the current episode, and end the session of the previous one."""
        previous, self.current, self.closed = self.current, current, False
        if previous is not None:
            yield from previous.close()

    def close_current(self) -> Effects[None]:
        """End the session of the current episode, if any, and hold none."""
        current, self.current = self.current, None
        if current is not None:
            yield from current.close()

    def close(self) -> Effects[None]:
        """End the session of the current episode, if any, as the environment is closed."""
        self.closed = True
        yield from self.close_current()

    def abandon(self, current: CurrentEpisode) -> Effects[None]:
        """Drop `current` after an error that the caller receives; another episode is untouched."""
        if self.current is not current:
            return
        try:
            yield from self.close_current()
        except SandboxError:
            # The session is already lost, as the error of the caller says.
            return


# `SessionOpening`: opens a session with its sub-calls and host functions.


class SessionOpening:
    """Opens episodes with `equipment`.

    Args:
        children: makes the factory of environments for child runs.
    """

    def __init__(
        self, equipment: EpisodeEquipment, children: Callable[[], ChildEnvFactory]
    ) -> None:
        self._equipment, self._children = equipment, children

    def open(
        self,
        current: CurrentEpisode,
        start: Callable[..., Effects[Any]],
        spent: Spent | None = None,
    ) -> Effects[None]:
        """Open the session of `current` with `start`.

        `spent` is the earlier cost of the episode's sub-calls. After an error nothing is open.
        """
        equipment = self._equipment
        try:
            slots = equipment.settings.max_concurrent_subcalls
            settings, subcalls = replace(current.hidden_task.subcalls, slots=slots), None
            if equipment.subcall_provider.names(settings):
                subcalls = equipment.subcall_provider.begin(settings, self._children())
            current.subcalls = subcalls
            if subcalls is not None and spent is not None:
                subcalls.account.begin_with(spent)
            host = {**session_functions(subcalls), **equipment.settings.tools}
            current.session = yield from start(
                host=host, on_answer=weak_callback(current.on_answer)
            )
            current.episode.set_isolation(current.session.isolation)
        except BaseException:
            yield from current.close()
            raise
