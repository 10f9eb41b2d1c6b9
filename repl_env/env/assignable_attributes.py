"""Attributes of environments that may be assigned: OpenEnv's, each checked and never ignored.

Assigned values hold for the episodes to come, and for the one that is open where its session need
not know of it; docs/openenv.md has the table.
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
    """An attribute that is got and set by two functions of its owner."""

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
    """The attribute `name` of the environment that `inner` is in its owner."""
    return AssignableAttribute(
        lambda owner: getattr(getattr(owner, inner), name),
        lambda owner, value: setattr(getattr(owner, inner), name, value),
        f"See `REPLEnvironment.{name}`.",
    )


def of_all(name: str) -> AssignableAttribute[Any]:
    """The attribute `name` of the environments of a group, of all at once."""

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
    """A field of `EnvironmentOptions`; `hold` has the current episode go on with it."""

    def put(owner: AssignableEnvironment, value: Any) -> None:
        owner.settings = replace(owner.settings, **{field: value})
        current = owner._episodes.slot.current
        if hold is not None and current is not None:
            hold(current, owner.settings)

    return AssignableAttribute(lambda owner: getattr(owner.settings, field), put)


def _function(name: str) -> AssignableAttribute[UserFunction | None]:
    """A function for sub-calls; calls that the current episode makes from here on go to it."""

    def get(owner: AssignableEnvironment) -> UserFunction | None:
        provider = owner._equipment.provider
        return provider.function(name) if isinstance(provider, GivenProvider) else None

    def put(owner: AssignableEnvironment, function: UserFunction | None) -> None:
        provider = owner._equipment.provider
        if not isinstance(provider, GivenProvider):
            raise REPLError(f"{name}: sub-calls of this environment are answered for it already")
        # Another one: branches have the provider in common.
        owner._equipment.provider = given = provider.with_function(name, function)
        current = owner._episodes.slot.current
        if current is not None and current.subcalls is not None:
            given.take_over(current.subcalls, current.asked.subcalls)

    return AssignableAttribute(get, put)


def _term(field: str) -> AssignableAttribute[Any]:
    """A field of `EnvironmentOptions` that the terms of an episode have under the same name."""

    def hold(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
        held = {field: getattr(settings, field)}
        current.episode.terms = replace(current.episode.terms, **held)

    return _setting(field, hold)


def _hold_preview(current: CurrentEpisode, settings: EnvironmentOptions) -> None:
    terms = current.episode.terms
    context = terms.context.previewed(settings.preview, settings.context_preview_length)
    current.episode.terms = replace(terms, context=context)


class AssignableEnvironment(Environment[REPLAction, REPLObservation, REPLState]):
    """The attributes of OpenEnv's `REPLEnvironment` that say what its episodes are like.

    Attributes:
        max_iterations: steps per episode, unless a reset says otherwise. One that is open ends with
            the first step that reaches it.
        max_output_length, context_preview_length: characters that are shown, from the next
            observation on.
        initial_context, initial_task_prompt: of episodes whose reset names none, from the next
            reset on.
        rlm_max_depth, rlm_max_iterations: how deep and how long sub-calls may work, likewise.
        max_concurrent_subcalls: how many of an episode may be under way at once, likewise.
        llm_query_fn, llm_batch_fn, subcall_fn, subcall_batch_fn: answer sub-calls, from the next
            one on. An episode that was begun without anything that answers has none until a reset.
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
        """The terms of episodes whose reset names no others."""
        return self._equipment.settings

    @settings.setter
    def settings(self, settings: EnvironmentOptions) -> None:
        self._equipment.settings = settings

    @property
    def initial_task_prompt(self) -> str:
        """The task of episodes whose reset names none."""
        return self.settings.task_prompt or ""

    @initial_task_prompt.setter
    def initial_task_prompt(self, task_prompt: str | None) -> None:
        self.settings = replace(self.settings, task_prompt=task_prompt)
