"""`AssignableAttribute`: an attribute that two functions get and set; attributes that forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

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
