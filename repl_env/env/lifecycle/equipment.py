"""`EpisodeEquipment`: the options and providers for later episodes of an environment."""

from __future__ import annotations

from dataclasses import dataclass

from repl_env.env.options import ConstructorOptions, EnvironmentOptions, checked_tools
from repl_env.episode.sandbox_provider import SandboxProvider, SandboxSettings
from repl_env.rlm.subcalls.provider import GivenProvider
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

    @classmethod
    def of(cls, options: ConstructorOptions) -> EpisodeEquipment:
        """Return the equipment for the options of a constructor.

        Raises:
            TypeError, ValueError: naming the argument.
        """
        settings = EnvironmentOptions(
            context=options.context,
            task_prompt=options.task_prompt,
            max_iterations=options.max_iterations,
            max_output_length=options.max_output_length,
            context_preview_length=options.context_preview_length,
            rlm_max_depth=options.rlm_max_depth,
            rlm_max_iterations=options.rlm_max_iterations,
            tools=checked_tools(options.tools),
            answers=options.answers,
            preview=options.preview,
            max_concurrent_subcalls=options.max_concurrent_subcalls,
        )
        return cls(settings, _subcall_provider(options), _sandbox_provider(options))

    def helpers(self, subcalls: SubcallSettings) -> tuple[str, ...]:
        """Return the names of the functions that a session has with these settings."""
        return (*sorted(self.subcall_provider.names(subcalls)), *self.settings.tools)


def _subcall_provider(options: ConstructorOptions) -> GivenProvider:
    return GivenProvider(
        options.llm_query_fn,
        options.llm_batch_fn,
        options.subcall_fn,
        options.subcall_batch_fn,
        budget=options.budget,
        prices=options.prices,
    )


def _sandbox_provider(options: ConstructorOptions) -> SandboxProvider:
    settings = SandboxSettings.of(
        options.isolation,
        options.require,
        options.limits,
        options.preload,
        options.policy,
        options.image,
        options.runtime,
    )
    return SandboxProvider(options.sandbox, settings)
