"""`SessionOpening`: opens a session with its sub-calls and host functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repl_env.env.lifecycle.current_episode import CurrentEpisode, weak_callback
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
                failed = weak_callback(current.subcall_failed)
                subcalls = equipment.subcall_provider.begin(settings, failed, self._children())
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
