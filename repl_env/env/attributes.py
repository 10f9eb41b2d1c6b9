"""`EnvironmentAttributes`: the settings of an environment, and views of its current episode.

Each assignment is checked. A value holds for later episodes, and for the open one if its session
need not know the value; docs/openenv.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from repl_env.episode.contexts import ContextPart, Given
from repl_env.episode.rules import Episode
from repl_env.episode.sandboxes import SandboxProvider
from repl_env.errors import REPLError
from repl_env.interfaces import Environment
from repl_env.models import REPLAction, REPLObservation, REPLState
from repl_env.rlm.answerers import UserFunction
from repl_env.rlm.providers import GivenProvider

if TYPE_CHECKING:
    from repl_env.env.current_episode import CurrentEpisode
    from repl_env.env.operations import EpisodeEffects
    from repl_env.env.options import EnvironmentOptions, EpisodeEquipment
    from repl_env.rlm.ledger import LedgerAccount
    from repl_env.rlm.subcalls import EpisodeSubcalls


# `AssignableAttribute`: an attribute that two functions get and set; attributes that forward.

T = TypeVar("T")


class AssignableAttribute(Generic[T]):
    """An attribute that two functions of its owner get and set."""

    def __init__(
        self, get: Callable[[Any], T], assign: Callable[[Any, T], None], doc: str | None = None
    ) -> None:
        self._get, self._assign, self.__doc__ = get, assign, doc

    @overload
    def __get__(self, owner: None, kind: type) -> AssignableAttribute[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> AssignableAttribute[T] | T:
        return self if owner is None else self._get(owner)

    def __set__(self, owner: object, value: T) -> None:
        self._assign(owner, value)


def of_inner(inner: str, name: str) -> AssignableAttribute[Any]:
    """Return the attribute `name` of the environment that the owner's attribute `inner` holds."""
    return AssignableAttribute(
        lambda owner: getattr(getattr(owner, inner), name),
        lambda owner, value: setattr(getattr(owner, inner), name, value),
        f"See `REPLEnvironment.{name}`.",
    )


def of_all(name: str) -> AssignableAttribute[Any]:
    """Return the attribute `name` of all environments of a group."""

    def assign(owner: Any, value: Any) -> None:
        for environment in owner.environments:
            setattr(environment, name, value)

    return AssignableAttribute(
        lambda owner: getattr(owner.environments[0], name),
        assign,
        f"See `REPLEnvironment.{name}`.",
    )


def _setting(
    field: str, apply: Callable[[CurrentEpisode, EnvironmentOptions], None] | None = None
) -> AssignableAttribute[Any]:
    """Return a field of `EnvironmentOptions`; `apply` gives the current episode a new value."""

    def assign(environment: EnvironmentAttributes, value: Any) -> None:
        environment.settings = replace(environment.settings, **{field: value})
        current = environment._episodes.slot.current
        if apply is not None and current is not None:
            apply(current, environment.settings)

    return AssignableAttribute(lambda environment: getattr(environment.settings, field), assign)


def _function(name: str) -> AssignableAttribute[UserFunction | None]:
    """Return a function for sub-calls; later calls of the current episode use the assigned one."""

    def get(environment: EnvironmentAttributes) -> UserFunction | None:
        provider = environment._equipment.subcall_provider
        return provider.function(name) if isinstance(provider, GivenProvider) else None

    def assign(environment: EnvironmentAttributes, function: UserFunction | None) -> None:
        provider = environment._equipment.subcall_provider
        if not isinstance(provider, GivenProvider):
            raise REPLError(f"{name}: sub-calls of this environment are answered for it already")
        # A new provider: branches share the old one.
        environment._equipment.subcall_provider = new_provider = provider.with_function(
            name, function
        )
        current = environment._episodes.slot.current
        if current is not None and current.subcalls is not None:
            new_provider.take_over(current.subcalls, current.hidden_task.subcalls)

    return AssignableAttribute(get, assign)


def _episode_setting(field: str) -> AssignableAttribute[Any]:
    """Return a field that `EnvironmentOptions` and `EpisodeConfig` have under the same name."""

    def apply(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
        changed = {field: getattr(settings, field)}
        current.episode.config = replace(current.episode.config, **changed)

    return _setting(field, apply)


def _apply_preview(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
    config = current.episode.config
    context = config.context.previewed(settings.preview, settings.context_preview_length)
    current.episode.config = replace(config, context=context)


class EnvironmentAttributes(Environment[REPLAction, REPLObservation, REPLState]):
    """The attributes of `REPLEnvironment`.

    Those that configure episodes are OpenEnv's and assignable; those of the current episode are
    read-only.

    Attributes:
        max_iterations: steps per episode, unless a reset gives another number. An open episode ends
            with the first step that reaches it.
        max_output_length, context_preview_length: characters that are shown, from the next
            observation on.
        initial_context, initial_task_prompt: defaults of a reset, from the next reset on.
        rlm_max_depth, rlm_max_iterations: limits of child runs, likewise.
        max_concurrent_subcalls: sub-calls of an episode that may run concurrently, likewise.
        llm_query_fn, llm_batch_fn, subcall_fn, subcall_batch_fn: answer sub-calls, from the next
            one on. An episode that began without any provider has none until a reset.
    """

    _episodes: EpisodeEffects
    _equipment: EpisodeEquipment

    max_iterations: AssignableAttribute[int] = _episode_setting("max_iterations")
    max_output_length: AssignableAttribute[int] = _episode_setting("max_output_length")
    context_preview_length: AssignableAttribute[int] = _setting(
        "context_preview_length", _apply_preview
    )
    rlm_max_depth: AssignableAttribute[int] = _setting("rlm_max_depth")
    rlm_max_iterations: AssignableAttribute[int | None] = _setting("rlm_max_iterations")
    max_concurrent_subcalls: AssignableAttribute[int] = _setting("max_concurrent_subcalls")
    initial_context: AssignableAttribute[Given | None] = _setting("context")
    llm_query_fn = _function("llm_query_fn")
    llm_batch_fn = _function("llm_batch_fn")
    subcall_fn = _function("subcall_fn")
    subcall_batch_fn = _function("subcall_batch_fn")

    @property
    def settings(self) -> EnvironmentOptions:
        """The options of the environment, defaults of each reset."""
        return self._equipment.settings

    @settings.setter
    def settings(self, settings: EnvironmentOptions) -> None:
        self._equipment.settings = settings

    @property
    def initial_task_prompt(self) -> str:
        """The default task of a reset."""
        return self.settings.task_prompt or ""

    @initial_task_prompt.setter
    def initial_task_prompt(self, task_prompt: str | None) -> None:
        self.settings = replace(self.settings, task_prompt=task_prompt)

    @property
    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._episodes.slot.require_current().episode.state()

    @property
    def session(self) -> Any:
        """The engine's session of this episode; NotReset if none has begun."""
        return self._episodes.slot.require_current().session

    @property
    def files(self) -> Any:
        """The files of the session's workspace: `put`, `get`, `list`, `archive`.

        The methods are awaited if `reset_async` began the episode. They work between steps, and
        after the end of the episode until the next reset. NotReset without an episode.
        """
        return self._episodes.slot.require_current().session.files

    # OpenEnv's names for the two parts of an episode; None between episodes.

    @property
    def _state(self) -> Episode | None:
        current = self._episodes.slot.current
        return None if current is None else current.episode

    @property
    def _executor(self) -> Any:
        current = self._episodes.slot.current
        return None if current is None else current.session

    @property
    def account(self) -> LedgerAccount:
        """The ledger account of the episode's sub-calls.

        Raises:
            NotReset: no episode has begun.
            REPLError: no provider answers sub-calls here, so no account exists.
        """
        subcalls = self._episodes.slot.require_current().subcalls
        if subcalls is None:
            raise REPLError("no sub-calls are configured, so there is no account of them")
        return subcalls.account

    @property
    def subcalls(self) -> EpisodeSubcalls | None:
        """The sub-calls of this episode; None without an episode or a provider."""
        current = self._episodes.slot.current
        return None if current is None else current.subcalls

    @property
    def scored(self) -> bool:
        """Whether the current episode has an expected answer."""
        current = self._episodes.slot.current
        return current is not None and current.hidden_task.expected_answer is not None

    @property
    def contexts(self) -> tuple[ContextPart, ...]:
        """The context of this episode, variable by variable; NotReset if none has begun."""
        return self._episodes.slot.require_current().episode.config.context.parts

    @property
    def sandbox_provider(self) -> SandboxProvider:
        """The provider of sandboxes for later episodes."""
        return self._equipment.sandbox_provider

    @property
    def variables(self) -> list[str]:
        """The names in the session; NotReset if no episode has begun."""
        return list(self._episodes.slot.require_current().episode.names)
