"""Schema of a host function: the description that a session receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..types import JSON

# Stands for a default value that the host does not send.
HIDDEN: Final = "..."

# Values of `inspect.Parameter`; a session does not load `inspect` for them.
POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD = range(5)


@dataclass(frozen=True, slots=True)
class Default:
    """A parameter's default: `value`, or a display `text` where JSON cannot carry the value."""

    value: JSON = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `kind` is a number of `inspect.Parameter`; `annotation` is display text."""

    name: str
    kind: int
    default: Default | None = None
    annotation: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters. With `checked`, the session refuses calls that do not fit."""

    parameters: tuple[Parameter, ...]
    returns: str | None = None
    checked: bool = True

    @property
    def by_position(self) -> tuple[str, ...]:
        """Names of the parameters that accept positional arguments."""
        return tuple(each.name for each in self.parameters if each.kind < VAR_POSITIONAL)

    def row(self) -> list[Any]:
        """Return the fields in order, as JSON."""
        return [self.checked, self.returns, [_parameter_row(each) for each in self.parameters]]


def _parameter_row(parameter: Parameter) -> list[Any]:
    default = parameter.default
    row = None if default is None else [default.value, default.text]
    return [parameter.name, parameter.kind, row, parameter.annotation]


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """One host function of `Configure`; `repl_sandbox.HostFunction` documents the fields.

    `methods` are names: the worker calls the method "result" of the function "spawn" as the
    function "spawn.result". That is no identifier, so no function of a user can have the name.
    """

    name: str
    doc: str = ""
    returns: str = "plain"
    signature: Signature | None = None
    raw: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if the function takes and returns JSON and needs no further stub."""
        return self.returns == "plain" and not (self.raw or self.raises)

    def row(self) -> list[Any]:
        """Return the fields in order, as JSON."""
        lists = [list(names) for names in (self.raw, self.methods, self.raises)]
        signature = None if self.signature is None else self.signature.row()
        return [self.name, self.doc, self.returns, signature, *lists]


def read(row: Any) -> FunctionSchema:
    """Return the schema that `row` describes; TypeError if it describes none."""
    if type(row) is not list or len(row) != 7:
        raise TypeError("a function is not a list of 7 fields")
    name, doc, returns, signature, *lists = row
    if not all(type(text) is str for text in (name, doc, returns)):
        raise TypeError("name, docstring or returns of a function is not text")
    for names in lists:
        if type(names) is not list or not all(type(each) is str for each in names):
            raise TypeError("a function has a field that is not a list of names")
    parsed = None if signature is None else _signature(signature)
    return FunctionSchema(name, doc, returns, parsed, *map(tuple, lists))


def _signature(row: Any) -> Signature:
    if type(row) is not list or len(row) != 3 or type(row[2]) is not list:
        raise TypeError("a signature is not a list of 3 fields")
    checked, returns, parameters = row
    if type(checked) is not bool or not _is_text_or_none(returns):
        raise TypeError("a field of a signature has the wrong type")
    return Signature(tuple(map(_parameter, parameters)), returns, checked)


def _parameter(row: Any) -> Parameter:
    if type(row) is not list or len(row) != 4:
        raise TypeError("a parameter is not a list of 4 fields")
    name, kind, default, annotation = row
    if type(name) is not str or kind not in range(5) or not _is_text_or_none(annotation):
        raise TypeError("a field of a parameter has the wrong type")
    if default is None:
        return Parameter(name, kind, None, annotation)
    if type(default) is not list or len(default) != 2 or not _is_text_or_none(default[1]):
        raise TypeError("a default is not a value and a text")
    return Parameter(name, kind, Default(*default), annotation)


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str
