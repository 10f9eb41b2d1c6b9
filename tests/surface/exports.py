"""Describe the names that public modules export now."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.surface.names import SAME, Surface, importable
from tests.surface.signatures import described, members


@dataclass(frozen=True)
class Annotation:
    """The annotation of a name that is declared and not evaluated."""

    text: str


def names_of(module: str) -> list[str]:
    """Return the names in `__all__` of a module, which need not be importable here."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in _tree(module).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return sorted(names)


def exported(module: str, name: str) -> object:
    """Return the object, or its `Annotation` where the module declares it as `name: annotation`.

    An application, which reads settings and may refuse them, is not made for a description.
    """
    annotation = _annotations(module).get(name)
    return getattr(import_module(module), name) if annotation is None else Annotation(annotation)


def found(surface: Surface) -> Surface:
    """Return the list as the code has it now; modules of missing extras keep their descriptions."""
    values = {
        (module, name): exported(module, name)
        for module in surface
        if importable(module)
        for name in names_of(module)
    }
    homes: dict[int, tuple[str, str]] = {}
    for path, value in values.items():
        if inspect.isclass(value) or inspect.isroutine(value):
            homes.setdefault(id(value), path)
    result = {module: {} if importable(module) else _kept(surface, module) for module in surface}
    for (module, name), value in values.items():
        home = homes.get(id(value), (module, name))
        is_first = home == (module, name)
        result[module] |= _lines(name, value, homes) if is_first else {name: SAME + ".".join(home)}
    return result


def _kept(surface: Surface, module: str) -> dict[str, str]:
    names = names_of(module)
    kept = {key: text for key, text in surface[module].items() if key.partition(".")[0] in names}
    return dict(sorted({**dict.fromkeys(names, ""), **kept}.items()))


def _lines(name: str, value: object, homes: dict[int, tuple[str, str]]) -> dict[str, str]:
    """Return the descriptions of a name and of its attributes that no public base class has."""
    if isinstance(value, Annotation):
        return {name: f"constant {value.text}"}
    lines = {name: described(value)}
    if inspect.isclass(value):
        public = [base for base in value.__mro__[1:] if id(base) in homes]
        lines |= {f"{name}.{key}": text for key, text in _new_members(value, public)}
    return lines


def _new_members(cls: type, public_bases: list[type]) -> Iterator[tuple[str, str]]:
    inherited = [item for base in public_bases for item in members(base).items()]
    return (item for item in members(cls).items() if item not in inherited)


def _annotations(module: str) -> dict[str, str]:
    nodes = list(_tree(module).body)
    nodes += [inner for node in nodes if isinstance(node, ast.If) for inner in node.body]
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
