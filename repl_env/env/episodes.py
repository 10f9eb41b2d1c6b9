"""`Episodes`: the work of all calls on an environment, put together of parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from repl_env.cells import OnOutput
from repl_env.current_episode import Mode
from repl_env.env.beginnings import Beginnings
from repl_env.env.continuations import Continuations
from repl_env.env.equipment import Equipment
from repl_env.env.opening import Opening
from repl_env.env.scorer import Scored, Scorer
from repl_env.env.slot import EpisodeSlot
from repl_env.env.steps import Steps
from repl_env.llm import LLM
from repl_env.models import REPLAction, REPLObservation
from repl_env.settings import Request
from repl_env.turns import Turn
from repl_sandbox.types import Missing

if TYPE_CHECKING:
    from repl_env.children import Children


class EpisodeTurns(Protocol):
    """The work of each call on an environment, as a turn; see the methods of `REPLEnvironment`."""

    @property
    def slot(self) -> EpisodeSlot:
        """The slot of the current episode."""

    def resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any], /
    ) -> Turn[REPLObservation]:
        """Begin an episode in a new session."""

    def following(
        self, mode: Mode, request: Request, variables: Mapping[str, Any] | None, /
    ) -> Turn[REPLObservation]:
        """Begin another episode in the session that is there."""

    def stepping(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        more: Mapping[str, Any],
        on_output: OnOutput | None = None,
        /,
    ) -> Turn[REPLObservation]:
        """Take an action."""

    def giving_up(self, mode: Mode, /) -> Turn[REPLObservation]:
        """End the episode as when the iterations are used up."""

    def saving(self, mode: Mode, path: str | os.PathLike[str], /) -> Turn[tuple[Missing, ...]]:
        """Write the episode to a file."""

    def loading(
        self, mode: Mode, path: str | os.PathLike[str], schema: Any, llm: LLM, /
    ) -> Turn[tuple[Missing, ...]]:
        """Go on with the episode in a file."""

    def branching(self, mode: Mode, seed: int | None, other: EpisodeSlot, /) -> Turn[None]:
        """Put a branch of the episode into another slot."""

    def leaving(self) -> Turn[None]:
        """End the session of the current episode, if there is one."""


class Episodes:
    """The episodes of one environment, one after another.

    Args:
        environment: a weak reference to the environment, whose transform and rubric score steps.
        children: makes what makes the environments of the runs below an episode.
    """

    def __init__(
        self,
        environment: Callable[[], Scored | None],
        equipment: Equipment,
        children: Callable[[], Children],
    ) -> None:
        self.slot = slot = EpisodeSlot()
        self.scorer = scorer = Scorer(environment)
        opening = Opening(equipment, children)
        steps = Steps(slot, scorer)
        beginnings = Beginnings(slot, equipment, scorer, opening)
        continuations = Continuations(slot, equipment, scorer, opening)
        self.resetting, self.following = beginnings.resetting, beginnings.following
        self.stepping, self.giving_up = steps.stepping, steps.giving_up
        self.saving, self.loading = continuations.saving, continuations.loading
        self.branching, self.leaving = continuations.branching, slot.leaving
