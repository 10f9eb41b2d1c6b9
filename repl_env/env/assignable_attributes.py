"""OpenEnv's assignable attributes of environments; each assignment is checked and takes effect.

A value holds for later episodes, and for the open one if its session need not know the value;
docs/openenv.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from repl_env.episode.contexts import Given
from repl_env.errors import REPLError
from repl_env.interfaces import Environment
from repl_env.models import REPLAction, REPLObservation, REPLState
from repl_env.rlm.subcalls.provider import GivenProvider
from repl_env.rlm.subcalls.subcall_settings import UserFunction

if TYPE_CHECKING:
    from repl_env.env.lifecycle.current_episode import CurrentEpisode
    from repl_env.env.lifecycle.equipment import EpisodeEquipment
    from repl_env.env.lifecycle.operations import EpisodeEffects
    from repl_env.env.options import EnvironmentOptions

T = TypeVar("T")


class AssignableAttribute(Generic[T]):
    """An attribute that two functions of its owner get and set."""

    def __init__(
        self, get: Callable[[Any], T], put: Callable[[Any, T], None], doc: str | None = None
    ) -> None:
        self._get, self._put, self.__doc__ = get, put, doc

    @overload
    def __get__(self, owner: None, kind: type) -> AssignableAttribute[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> AssignableAttribute[T] | T:
        return self if owner is None else self._get(owner)

    def __set__(self, owner: object, value: T) -> None:
        self._put(owner, value)


def of_inner(inner: str, name: str) -> AssignableAttribute[Any]:
    """Return the attribute `name` of the environment that the owner's attribute `inner` holds."""
    return AssignableAttribute(
        lambda owner: getattr(getattr(owner, inner), name),
        lambda owner, value: setattr(getattr(owner, inner), name, value),
        f"See `REPLEnvironment.{name}`.",
    )


def of_all(name: str) -> AssignableAttribute[Any]:
    """Return the attribute `name` of all environments of a group."""

    def put(owner: Any, value: Any) -> None:
        for environment in owner.environments:
            setattr(environment, name, value)

    return AssignableAttribute(
        lambda owner: getattr(owner.environments[0], name),
        put,
        f"See `REPLEnvironment.{name}`.",
    )


def _setting(
    field: str, hold: Callable[[CurrentEpisode, EnvironmentOptions], None] | None = None
) -> AssignableAttribute[Any]:
    """Return a field of `EnvironmentOptions`; `hold` applies a new value to the current episode."""

    def put(owner: AssignableEnvironment, value: Any) -> None:
        owner.settings = replace(owner.settings, **{field: value})
        current = owner._episodes.slot.current
        if hold is not None and current is not None:
            hold(current, owner.settings)

    return AssignableAttribute(lambda owner: getattr(owner.settings, field), put)


def _function(name: str) -> AssignableAttribute[UserFunction | None]:
    """Return a function for sub-calls; later calls of the current episode use the assigned one."""

    def get(owner: AssignableEnvironment) -> UserFunction | None:
        provider = owner._equipment.provider
        return provider.function(name) if isinstance(provider, GivenProvider) else None

    def put(owner: AssignableEnvironment, function: UserFunction | None) -> None:
        provider = owner._equipment.provider
        if not isinstance(provider, GivenProvider):
            raise REPLError(f"{name}: sub-calls of this environment are answered for it already")
        # A new provider: branches share the old one.
        owner._equipment.provider = given = provider.with_function(name, function)
        current = owner._episodes.slot.current
        if current is not None and current.subcalls is not None:
            given.take_over(current.subcalls, current.asked.subcalls)

    return AssignableAttribute(get, put)


def _term(field: str) -> AssignableAttribute[Any]:
    """Return a field that `EnvironmentOptions` and `EpisodeConfig` have under the same name."""

    def hold(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
        held = {field: getattr(settings, field)}
        current.episode.terms = replace(current.episode.terms, **held)

    return _setting(field, hold)


def _hold_preview(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
    terms = current.episode.terms
    context = terms.context.previewed(settings.preview, settings.context_preview_length)
    current.episode.terms = replace(terms, context=context)


class AssignableEnvironment(Environment[REPLAction, REPLObservation, REPLState]):
    """The attributes of OpenEnv's `REPLEnvironment` that configure its episodes.

    Attributes:
        max_iterations: steps per episode, unless a reset gives another number. An open episode ends
            with the first step that reaches it.
        max_output_length, context_preview_length: characters that are shown, from the next
            observation
            on.
        initial_context, initial_task_prompt: defaults of a reset, from the next reset on.
        rlm_max_depth, rlm_max_iterations: limits of child runs, likewise.
        max_concurrent_subcalls: sub-calls of an episode that may run concurrently, likewise.
        llm_query_fn, llm_batch_fn, subcall_fn, subcall_batch_fn: answer sub-calls, from the next
            one
            on. An episode that began without any provider has none until a reset.
    """

    _episodes: EpisodeEffects
    _equipment: EpisodeEquipment

    max_iterations: AssignableAttribute[int] = _term("max_iterations")
    max_output_length: AssignableAttribute[int] = _term("max_output_length")
    context_preview_length: AssignableAttribute[int] = _setting(
        "context_preview_length", _hold_preview
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
