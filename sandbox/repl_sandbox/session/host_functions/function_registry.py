"""What a host offers to one session: functions by the names that they are called under."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...protocol.function_schema import FunctionSchema
from ...protocol.values.raw_arguments import Place
from .host_function import HostFunction, check_offered
from .signatures import signature_of

HostCallable: TypeAlias = Callable[..., Any]

# help(f) in the session; longer texts are cut.
_MAX_DOC = 2000
_NOWHERE: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class FunctionRegistry:
    """`functions` by the name in a call, methods of handles as "function.method".

    `rows` are what the session is told; `names` what it then has in its namespace.
    """

    functions: dict[str, HostCallable] = field(default_factory=dict)
    rows: tuple[FunctionSchema, ...] = ()
    names: frozenset[str] = frozenset()
    _places: dict[str, frozenset[Place]] = field(default_factory=dict)

    def places(self, name: str) -> frozenset[Place]:
        """Where a call of `name` may have raw arguments."""
        return self._places.get(name, _NOWHERE)

    def differ(self, others: FunctionRegistry) -> bool:
        """Whether code that was told of these would miss one of `others`, or mistake it."""
        return {_but_for_doc(row) for row in self.rows} != {
            _but_for_doc(row) for row in others.rows
        }


def _but_for_doc(row: FunctionSchema) -> tuple[Any, ...]:
    # Parameters matter only where an argument travels by its position.
    positions = row.signature.by_position if row.raw and row.signature is not None else ()
    return row.name, row.face, positions, row.raw, frozenset(row.methods), row.raises


def check(host: Mapping[str, HostCallable | HostFunction] | None) -> FunctionRegistry:
    """What `host` offers, or TypeError / ValueError naming what is wrong with it."""
    if host is None:
        return FunctionRegistry()
    if not isinstance(host, Mapping):
        raise TypeError(f"host must be a dict of functions, not {type(host).__name__}")
    functions: dict[str, HostCallable] = {}
    rows, errors, places = [], set(), {}
    for name, given in host.items():
        if not isinstance(name, str) or not (callable(given) or isinstance(given, HostFunction)):
            raise TypeError(f"host[{name!r}] must be a function under a str")
        check_offered(name, "host")
        offer = given if isinstance(given, HostFunction) else None
        functions[name] = given if offer is None else offer.function  # type: ignore[assignment]
        row = _row(name, functions[name], offer)
        rows.append(row)
        if offer is not None:
            functions |= {f"{name}.{each}": method for each, method in offer.methods.items()}
            errors |= set(offer.raises)
            if offer.raw:
                places[name] = offer.places(row.signature)
    if clash := errors & functions.keys():
        raise ValueError(f"host: {sorted(clash)} name functions, and are in raises= as well")
    return FunctionRegistry(functions, tuple(rows), frozenset(host) | errors, places)


def _row(name: str, function: HostCallable, offer: HostFunction | None) -> FunctionSchema:
    doc = _doc(function)[:_MAX_DOC]
    if offer is None:
        return FunctionSchema(name, doc, signature=signature_of(function))
    return FunctionSchema(
        name,
        doc,
        offer.face,
        offer.parameters,
        tuple(offer.raw),
        tuple(offer.methods),
        tuple(offer.raises),
    )


def _doc(function: HostCallable) -> str:
    """The docstring of `function`; of one that has none of its own, that of what it calls."""
    while isinstance(function, functools.partial) and function.__doc__ == functools.partial.__doc__:
        function = function.func
    call = type(function).__call__
    calls = inspect.getdoc(call) if inspect.isfunction(call) else None
    return inspect.getdoc(function) or calls or ""
