"""`FunctionRegistry`: the host functions of one session, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...protocol.function_schema import FunctionSchema
from ...protocol.values.raw_arguments import Place
from .host_function import HostFunction, check_function_name
from .signatures import signature_of

HostCallable: TypeAlias = Callable[..., Any]

# Characters of a docstring, for help(f) in the session; the rest is cut.
_MAX_DOC = 2000
_NOWHERE: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class FunctionRegistry:
    """The host functions of one session.

    Attributes:
        functions: By the name in a call; the methods of handles as "function.method".
        rows: The schemas that the session receives.
        names: The names that the session then has in its namespace.
    """

    functions: dict[str, HostCallable] = field(default_factory=dict)
    rows: tuple[FunctionSchema, ...] = ()
    names: frozenset[str] = frozenset()
    _places: dict[str, frozenset[Place]] = field(default_factory=dict)

    def places(self, name: str) -> frozenset[Place]:
        """The places of a call of `name` that may hold raw arguments."""
        return self._places.get(name, _NOWHERE)

    def differ(self, others: FunctionRegistry) -> bool:
        """Return whether code written for these functions would not work with `others`."""
        return {_without_doc(row) for row in self.rows} != {
            _without_doc(row) for row in others.rows
        }


def _without_doc(row: FunctionSchema) -> tuple[Any, ...]:
    # Parameters matter only where an argument travels by position.
    positions = row.signature.by_position if row.raw and row.signature is not None else ()
    return row.name, row.returns, positions, row.raw, frozenset(row.methods), row.raises


def check(host: Mapping[str, HostCallable | HostFunction] | None) -> FunctionRegistry:
    """Return the functions of `host`; raise TypeError or ValueError naming the faulty entry."""
    if host is None:
        return FunctionRegistry()
    if not isinstance(host, Mapping):
        raise TypeError(f"host must be a dict of functions, not {type(host).__name__}")
    functions: dict[str, HostCallable] = {}
    rows, errors, places = [], set(), {}
    for name, function in host.items():
        if not isinstance(name, str) or not (
            callable(function) or isinstance(function, HostFunction)
        ):
            raise TypeError(f"host[{name!r}] must be a function, and its name a str")
        check_function_name(name, "host")
        described = function if isinstance(function, HostFunction) else None
        functions[name] = function if described is None else described.function  # type: ignore[assignment]
        row = _row(name, functions[name], described)
        rows.append(row)
        if described is not None:
            functions |= {f"{name}.{each}": method for each, method in described.methods.items()}
            errors |= set(described.raises)
            if described.raw:
                places[name] = described.places(row.signature)
    if clash := errors & functions.keys():
        raise ValueError(f"host: {sorted(clash)} are names of functions and of raises= as well")
    return FunctionRegistry(functions, tuple(rows), frozenset(host) | errors, places)


def _row(name: str, function: HostCallable, described: HostFunction | None) -> FunctionSchema:
    doc = _doc(function)[:_MAX_DOC]
    if described is None:
        return FunctionSchema(name, doc, signature=signature_of(function))
    return FunctionSchema(
        name,
        doc,
        described.returns,
        described.parameters,
        tuple(described.raw),
        tuple(described.methods),
        tuple(described.raises),
    )


def _doc(function: HostCallable) -> str:
    """The docstring of `function`; for a partial or an object, that of the function it calls."""
    while isinstance(function, functools.partial) and function.__doc__ == functools.partial.__doc__:
        function = function.func
    call = type(function).__call__
    calls = inspect.getdoc(call) if inspect.isfunction(call) else None
    return inspect.getdoc(function) or calls or ""
