"""The parameters of a host function, as a session may know them.

An untrusted session must not see every default, which may be a key of the host's: only short plain
literals are sent, and none that a `functools.partial` has bound.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ...protocol.function_schema import (
    HIDDEN,
    KEYWORD_ONLY,
    POSITIONAL_ONLY,
    POSITIONAL_OR_KEYWORD,
    VAR_KEYWORD,
    VAR_POSITIONAL,
    Default,
    Parameter,
    Signature,
)

# Characters. Names of modes and separators are shorter, keys and tokens longer.
_LONGEST_TEXT = 20
_MAX_ELEMENTS = 8
_LONGEST_ANNOTATION = 200
_MAX_PARAMETERS = 100
_LISTS = (tuple, list, set, frozenset)
# From 3.14 on annotations are evaluated when they are read, and may name what only a type checker
# imports.
_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _OPTIONS["annotation_format"] = Format.FORWARDREF


# Sessions usually have the same functions, and inspecting six takes 0.2 ms. For plain functions
# alone: comparing another object can run code of its own.
_known: WeakKeyDictionary[FunctionType, Signature | None] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> Signature | None:
    """Return the parameters of `function`; None if they cannot be inspected."""
    if type(function) is not FunctionType:
        return _read(function)
    if function not in _known:
        _known[function] = _read(function)
    return _known[function]


def _read(function: Callable[..., Any]) -> Signature | None:
    try:
        described = inspect.signature(function, **_OPTIONS)
        if len(described.parameters) > _MAX_PARAMETERS:
            return None
        bound = _bound(function)
        rows = tuple(_parameter(each, bound) for each in described.parameters.values())
        returns = _annotation(described.return_annotation)
    # Boundary: the function may be any object of the caller's, with attributes that raise anything.
    except Exception:  # noqa: BLE001
        return None
    return Signature(rows, returns, _is_own(function, described))


def _is_own(function: Any, described: inspect.Signature) -> bool:
    """Return whether the signature is `function`'s own; a wrapper may take other arguments."""
    try:
        own = inspect.signature(function, follow_wrapped=False, **_OPTIONS)
    except ValueError:  # a C function, such as functools.cache returns
        return False
    return own == described and not hasattr(function, "__signature__")


def of_text(parameters: ast.arguments) -> Signature:
    """Return the parameters of a signature in text form, with literals as defaults."""
    positional = [*parameters.posonlyargs, *parameters.args]
    left_out: list[ast.expr | None] = [None] * (len(positional) - len(parameters.defaults))
    rows = [
        Parameter(
            each.arg,
            POSITIONAL_ONLY if each in parameters.posonlyargs else POSITIONAL_OR_KEYWORD,
            _literal(default),
        )
        for each, default in zip(positional, [*left_out, *parameters.defaults], strict=True)
    ]
    if parameters.vararg is not None:
        rows.append(Parameter(parameters.vararg.arg, VAR_POSITIONAL))
    rows += [
        Parameter(each.arg, KEYWORD_ONLY, _literal(default))
        for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    ]
    if parameters.kwarg is not None:
        rows.append(Parameter(parameters.kwarg.arg, VAR_KEYWORD))
    return Signature(tuple(rows))


def _literal(default: ast.expr | None) -> Default | None:
    if default is None:
        return None
    value = ast.literal_eval(default)
    return Default(value) if _is_scalar(value) else Default(text=ast.unparse(default))


def _bound(function: Any) -> frozenset[str]:
    """The keywords that partial objects have bound."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return frozenset(names)


def _parameter(parameter: inspect.Parameter, bound: frozenset[str]) -> Parameter:
    default = None
    if parameter.default is not inspect.Parameter.empty:
        hidden = parameter.name in bound or not _is_literal(parameter.default)
        default = Default(text=HIDDEN) if hidden else _literal_text(parameter.default)
    return Parameter(
        parameter.name, int(parameter.kind), default, _annotation(parameter.annotation)
    )


def _is_literal(value: Any) -> bool:
    if type(value) in _LISTS:
        return len(value) <= _MAX_ELEMENTS and all(map(_is_literal, value))
    if type(value) is str:
        return len(value) <= _LONGEST_TEXT
    return (
        value == {} if type(value) is dict else value is None or type(value) in (bool, int, float)
    )


def _literal_text(value: Any) -> Default:
    return Default(value) if _is_scalar(value) else Default(text=repr(value))


def _is_scalar(value: Any) -> bool:
    """Return whether the value is a JSON scalar."""
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def _annotation(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    forward = getattr(annotation, "__forward_arg__", annotation)
    text = forward if isinstance(forward, str) else inspect.formatannotation(annotation)
    return text if len(text) <= _LONGEST_ANNOTATION else None
