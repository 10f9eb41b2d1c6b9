"""Checks of a cell's imports and calls, made on its syntax tree before any of it runs.

The checks see the text of a cell and not the values at run time: a function in a list, a name built
from parts, or code given to `exec` passes. They tell well-meant code the rules; they do not contain
hostile code.
"""

from __future__ import annotations

from ast import (
    AST,
    AsyncFunctionDef,
    Call,
    ClassDef,
    FunctionDef,
    Import,
    ImportFrom,
    Module,
    expr,
    walk,
)
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..errors import PolicyError
from .name_origins import NameOrigins

# Names that a message lists; a model reads the message.
_LISTED = 40


class Violation(NamedTuple):
    """A forbidden construct and its place: line and column, both from 1."""

    line: int
    column: int
    text: str


def refuse(violations: list[Violation]) -> None:
    """Raise a PolicyError for the first of `violations` in source order, if there is one."""
    if not violations:
        return
    first = min(violations)
    more = len(set(violations)) - 1
    rest = f" (and {more} more in this cell)" if more else ""
    raise PolicyError(f"{first.text}{rest}", first.line, first.column)


def listed(names: Collection[str]) -> str:
    """Return names as text for a message."""
    listed_names = sorted(name for name in names if name != "__future__")  # no reader needs it
    shown = ", ".join(listed_names[:_LISTED])
    more = len(listed_names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none"


class Lint:
    """Rules for the cells of one session. `imports` None allows any module.

    `package`: package that relative imports start from, "" for cells, which are in none.
    """

    def __init__(
        self, imports: Collection[str] | None, calls_denied: Collection[str], package: str = ""
    ) -> None:
        self._package = package
        self._imports = None if imports is None else frozenset(imports)
        self._denied = frozenset(calls_denied)
        self._origins = NameOrigins(max((name.count(".") + 1 for name in calls_denied), default=1))

    def __call__(self, tree: Module) -> Module:
        """Return `tree` unchanged; PolicyError with line and column if it breaks a rule."""
        origins = self._origins.learn(tree)
        refuse([found for node in walk(tree) for found in self._violations(node, origins)])
        self._origins = origins
        return tree

    def _violations(self, node: AST, origins: NameOrigins) -> Iterator[Violation]:
        match node:
            case Import(names=names):
                for alias in names:
                    yield from self._module(alias, alias.name)
            case ImportFrom(module=module, level=level, names=names):
                origin = self._origin(module or "", level)
                full_names = [f"{origin}.{alias.name}" for alias in names]
                if not all(self._allows(name) for name in full_names):
                    yield from self._module(node, origin)
            case Call(func=func):
                yield from self._call(node, func, origins)
                yield from self._dynamic(node, origins)
            case FunctionDef() | AsyncFunctionDef() | ClassDef():
                for decorator in node.decorator_list:
                    yield from self._call(decorator, decorator, origins)

    def _module(self, node: AST, module: str) -> Iterator[Violation]:
        if not self._allows(module):
            yield self._at(node, f"import of {module!r} is not allowed; {self._allowed()}")

    def _origin(self, module: str, level: int) -> str:
        """Return the module that a `from` statement names."""
        if not level or not self._package:
            return "." * level + module
        above = self._package.rsplit(".", level - 1)[0]
        return f"{above}.{module}" if module else above

    def _dynamic(self, node: Call, origins: NameOrigins) -> Iterator[Violation]:
        modules = None if self._imports is None else origins.imported(node)
        if modules is None:
            return
        for module in modules:
            yield from self._module(node, module)
        if not modules:
            yield self._at(
                node, f"an import must name its module as a plain text; {self._allowed()}"
            )

    def _call(self, node: expr, func: expr, origins: NameOrigins) -> Iterator[Violation]:
        if not self._denied:
            return
        for name in sorted(origins.of(func)):
            rule = next((rule for rule in self._denied if _is_below(name, rule)), None)
            if rule is not None:
                yield self._at(
                    node,
                    f"the call of {name!r} is not allowed; calls denied: {listed(self._denied)}",
                )
                return

    def _allows(self, module: str) -> bool:
        if self._imports is None or module == "__future__" or module.startswith("__future__."):
            return True
        return any(_is_below(module, allowed) for allowed in self._imports)

    def _allowed(self) -> str:
        return f"imports allowed: {listed(self._imports or ())}"

    def _at(self, node: AST, text: str) -> Violation:
        return Violation(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, text)


def _is_below(name: str, rule: str) -> bool:
    return name == rule or name.startswith(f"{rule}.")
