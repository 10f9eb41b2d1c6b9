"""`SessionOpening`: opens a session with its sub-calls and host functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repl_env.env.lifecycle.current_episode import CurrentEpisode, weakly
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.episode.effects import Effects
from repl_env.rlm.subcalls.subcall_settings import session_functions

if TYPE_CHECKING:
    from repl_env.env.child_env_factory import ChildEnvFactory
    from repl_env.rlm.budget.budget_limits import Spent


class SessionOpening:
    """Opens episodes with `equipment`.

    Args:
        children: makes the factory of environments for child runs.
    """

    def __init__(
        self, equipment: EpisodeEquipment, children: Callable[[], ChildEnvFactory]
    ) -> None:
        self._equipment, self._children = equipment, children

    def opening(
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
            width = equipment.settings.max_concurrent_subcalls
            settings, subcalls = replace(current.asked.subcalls, width=width), None
            if equipment.provider.names(settings):
                failed = weakly(current.subcall_failed)
                subcalls = equipment.provider.begin(settings, failed, self._children())
            current.subcalls = subcalls
            if subcalls is not None and spent is not None:
                subcalls.account.begin_with(spent)
            host = {**session_functions(subcalls), **equipment.settings.tools}
            current.session = yield from start(host=host, on_answer=weakly(current.answered))
            current.episode.held_by(current.session.isolation)
        except BaseException:
            yield from current.ending()
            raise
