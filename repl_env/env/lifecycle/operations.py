"""`EpisodeOperations`: the operations of an environment, composed of parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from repl_env.env.lifecycle.continuation import EpisodeContinuation
from repl_env.env.lifecycle.current_episode import Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.env.lifecycle.reset import EpisodeReset
from repl_env.env.lifecycle.scorer import RewardStep, Scored
from repl_env.env.lifecycle.session_opening import SessionOpening
from repl_env.env.lifecycle.step import StepOperations
from repl_env.episode.call_options import FollowUpOptions
from repl_env.episode.effects import Effects
from repl_env.episode.session_effects import OnOutput
from repl_env.llm.model_spec import LLM
from repl_env.models import REPLAction, REPLObservation
from repl_sandbox.types import Missing

if TYPE_CHECKING:
    from repl_env.env.child_env_factory import ChildEnvFactory


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
        steps = StepOperations(slot, scorer)
        resets = EpisodeReset(slot, equipment, scorer, session_opening)
        continuations = EpisodeContinuation(slot, equipment, scorer, session_opening)
        self.begin_episode, self.follow_up = resets.begin_episode, resets.follow_up
        self.take_step, self.give_up = steps.take_step, steps.give_up
        self.save, self.load = continuations.save, continuations.load
        self.rollback = continuations.rollback
        self.branch, self.close_current = continuations.branch, slot.close
