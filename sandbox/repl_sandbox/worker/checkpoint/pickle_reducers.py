"""Pickles of standard-library objects made by cells that neither pickle nor cloudpickle can save.

Exceptions with their own `__init__`, `singledispatch`, `cached_property`, `ParamSpec`.
"""

from __future__ import annotations

import copyreg
import functools
import typing
from collections.abc import Callable
from types import FunctionType, WrapperDescriptorType
from typing import Any

_PARAMETERS: tuple[type, ...] = (typing.ParamSpec, typing.TypeVarTuple)
# The code and the attributes that all functions of `functools.singledispatch` have.
_PLAIN: Any = functools.singledispatch(len)
_DISPATCHING, _OWN = _PLAIN.__code__, _PLAIN.__dict__.keys()


def reducer(kind: type, value: Any) -> Callable[[Any], Any] | None:
    """Return the reducer of `value`, whose class is `kind`; None if it is not one of these."""
    if kind is FunctionType:
        return _dispatching if value.__code__ is _DISPATCHING else None
    if kind is functools.cached_property:
        return _cached_property
    if kind is functools.singledispatchmethod:
        return _dispatching_method
    if kind in _PARAMETERS:
        return _parameters if value.__module__ == "__main__" else None
    return _exception if issubclass(kind, BaseException) and _is_of_a_cell(kind) else None


def _is_of_a_cell(kind: Any) -> bool:
    """Return whether an exception has code that pickle would call with other arguments."""
    return (
        type(kind.__init__) is FunctionType
        and kind.__reduce__ is BaseException.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
    )


def _exception(error: Any) -> tuple[Any, ...]:
    kind, arguments, *state = error.__reduce__()
    return make_exception, (kind, arguments), *state


def _dispatching(function: Any) -> tuple[Any, ...]:
    more = {name: value for name, value in function.__dict__.items() if name not in _OWN}
    state = dict(function.registry), more
    return make_dispatching, (function.__wrapped__,), state, None, None, fill_dispatching


def _cached_property(cached: Any) -> tuple[Any, ...]:
    """Reduce a cached_property without its lock, which it has before Python 3.12."""
    state = {name: value for name, value in vars(cached).items() if name != "lock"}
    return functools.cached_property, (cached.func,), state


def _dispatching_method(method: Any) -> tuple[Any, ...]:
    """Reduce a singledispatchmethod without its cache, which some Pythons 3.12 and 3.13 have."""
    state = {name: value for name, value in vars(method).items() if name != "_method_cache"}
    return functools.singledispatchmethod, (method.func,), state


def _parameters(parameters: Any) -> tuple[Any, ...]:
    return make_parameters, (type(parameters), parameters.__name__)


# ── what pickles call ─────────────────────────────────────────────────────────────────────────


def make_exception(kind: Any, arguments: tuple[object, ...]) -> BaseException:
    """Return an exception without calling its class's `__init__`, whose arguments are unknown."""
    exception: BaseException = kind.__new__(kind, *arguments)
    inits = (vars(base).get("__init__") for base in kind.__mro__)
    next(init for init in inits if type(init) is WrapperDescriptorType)(exception, *arguments)
    return exception


def make_dispatching(function: Callable[..., Any]) -> Any:
    """Return `function` made generic, without implementations."""
    return functools.singledispatch(function)


def fill_dispatching(function: Any, state: tuple[dict[type, Any], dict[str, Any]]) -> None:
    """Give a new generic function its implementations and attributes."""
    implementations, more = state
    for kind, implementation in implementations.items():
        function.register(kind, implementation)
    function.__dict__.update(more)


def make_parameters(kind: type, name: str) -> object:
    """Return a `ParamSpec` or `TypeVarTuple`; its module is that of the code that makes it."""
    return eval("kind(name)", {"__name__": "__main__", "kind": kind, "name": name})
