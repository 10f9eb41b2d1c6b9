"""`EpisodeEquipment`: what the episodes to come of an environment are made with."""

from __future__ import annotations

from dataclasses import dataclass

from repl_env.env.options import EnvironmentOptions
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.rlm.subcalls.subcall_settings import Provider, SubcallSettings


@dataclass(slots=True)
class EpisodeEquipment:
    """Each field may be replaced at any time; the current episode keeps what it was begun with.

    Attributes:
        settings: the terms of episodes whose reset names no others.
        provider: answers sub-calls.
        source: where sessions come from.
    """

    settings: EnvironmentOptions
    provider: Provider
    source: SandboxProvider

    def helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        """The names of the functions that a session has, with these settings for sub-calls."""
        return (*sorted(self.provider.names(subcalls)), *self.settings.tools)
