"""A function of the host as a session is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..types import JSON

# Of a default that is not told.
HIDDEN: Final = "..."

# Of `inspect.Parameter`, which a session does not load for this.
POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD = range(5)


@dataclass(frozen=True, slots=True)
class Default:
    """A parameter's default: the `value`, or, where JSON has none like it, a `text` for it."""

    value: JSON = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `kind` is a number of `inspect.Parameter`; `annotation` is text to show."""

    name: str
    kind: int
    default: Default | None = None
    annotation: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters. `checked`: a call that does not fit is refused in the session."""

    parameters: tuple[Parameter, ...]
    returns: str | None = None
    checked: bool = True

    @property
    def by_position(self) -> tuple[str, ...]:
        """The names of the parameters that positional arguments are for."""
        return tuple(each.name for each in self.parameters if each.kind < VAR_POSITIONAL)

    def row(self) -> list[Any]:
        """The fields in their order, as JSON."""
        return [self.checked, self.returns, [_parameter_row(each) for each in self.parameters]]


def _parameter_row(parameter: Parameter) -> list[Any]:
    default = parameter.default
    told = None if default is None else [default.value, default.text]
    return [parameter.name, parameter.kind, told, parameter.annotation]


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """One row of `Configure`; see `repl_sandbox.HostFunction` for what each field means.

    `methods` are names: the worker calls the method "result" of the function "spawn" as the
    function "spawn.result", which is no identifier and so no name that a user can give.
    """

    name: str
    doc: str = ""
    face: str = "plain"
    signature: Signature | None = None
    raw: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether JSON goes in and out, and there is nothing more to it."""
        return self.face == "plain" and not (self.raw or self.raises)

    def row(self) -> list[Any]:
        """The fields in their order, as JSON."""
        lists = [list(names) for names in (self.raw, self.methods, self.raises)]
        signature = None if self.signature is None else self.signature.row()
        return [self.name, self.doc, self.face, signature, *lists]


def read(row: Any) -> FunctionSchema:
    """The function that `row` describes; TypeError if it is none."""
    if type(row) is not list or len(row) != 7:
        raise TypeError("a function is not a list of 7 fields")
    name, doc, face, signature, *lists = row
    if not all(type(text) is str for text in (name, doc, face)):
        raise TypeError("name, docstring or face of a function is not text")
    for names in lists:
        if type(names) is not list or not all(type(each) is str for each in names):
            raise TypeError("a function has a field that is no list of names")
    told = None if signature is None else _signature(signature)
    return FunctionSchema(name, doc, face, told, *map(tuple, lists))


def _signature(row: Any) -> Signature:
    if type(row) is not list or len(row) != 3 or type(row[2]) is not list:
        raise TypeError("a signature is not a list of 3 fields")
    checked, returns, parameters = row
    if type(checked) is not bool or not _is_text_or_none(returns):
        raise TypeError("a field of a signature is not what it must be")
    return Signature(tuple(map(_parameter, parameters)), returns, checked)


def _parameter(row: Any) -> Parameter:
    if type(row) is not list or len(row) != 4:
        raise TypeError("a parameter is not a list of 4 fields")
    name, kind, default, annotation = row
    if type(name) is not str or kind not in range(5) or not _is_text_or_none(annotation):
        raise TypeError("a field of a parameter is not what it must be")
    if default is None:
        return Parameter(name, kind, None, annotation)
    if type(default) is not list or len(default) != 2 or not _is_text_or_none(default[1]):
        raise TypeError("a default is not a value and a text")
    return Parameter(name, kind, Default(*default), annotation)


def _is_text_or_none(value: Any) -> bool:
    return value is None or type(value) is str
