"""`EpisodeEquipment`: the options and providers for later episodes of an environment."""

from __future__ import annotations

from dataclasses import dataclass

from repl_env.env.options import EnvironmentOptions
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.rlm.subcalls.subcall_settings import Provider, SubcallSettings


@dataclass(slots=True)
class EpisodeEquipment:
    """Options and providers; replacing one leaves the current episode unchanged.

    Attributes:
        settings: the default configuration of episodes.
        subcall_provider: answers sub-calls.
        sandbox_provider: provides the sandbox of sessions.
    """

    settings: EnvironmentOptions
    subcall_provider: Provider
    sandbox_provider: SandboxProvider

    def helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        """Return the names of the functions that a session has with these settings."""
        return (*sorted(self.subcall_provider.names(subcalls)), *self.settings.tools)
