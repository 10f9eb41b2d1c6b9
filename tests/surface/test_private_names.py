"""Tests reach private names through modules of internals alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.surface.names import ROOT

TESTS = ROOT / "tests"
# Modules whose functions are named for what they reach.
SEAM = "internals.py"
# Files that reach private names themselves, with the reason.
REASONS = {
    "compat/official_client.py": "frames pass through private methods of OpenEnv's client alone",
    "security/without_layer.py": "a program that stands in for the one that starts a template",
    "training/trl/scripted.py": "TRL's trainer shows rollouts, losses and logs nowhere else",
}
# Names with an underscore that their owners document or that users of OpenEnv rely on.
DOCUMENTED = {
    *("_exit", "_current_frames", "_fields", "_attributes", "_replace"),  # the standard library
    *("_repr_html_", "_repr_png_", "_repr_pretty_"),  # IPython
    "_name_or_path",  # transformers
    *("_state", "_executor", "_build_hf_chat_fn"),  # OpenEnv's environment
}


def private(name: str) -> bool:
    """Return whether a name has one underscore in front and is not documented."""
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def reached(source: str) -> Iterator[str]:
    """The private names of other objects and modules in a source."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=[target, *more]):
                texts = [
                    each.value for each in (target, *more[:1]) if isinstance(each, ast.Constant)
                ]
                names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
            case _:
                continue
        yield from filter(private, names)


def test_private_names_are_reached_by_modules_of_internals_alone() -> None:
    found = {
        name: names
        for file in sorted(TESTS.rglob("*.py"))
        if not file.name.endswith(SEAM)
        and (name := str(file.relative_to(TESTS))) not in REASONS
        and (names := sorted(set(reached(file.read_text(encoding="utf-8")))))
    }

    assert found == {}


def test_each_exception_is_needed() -> None:
    for name in REASONS:
        assert [*reached((TESTS / name).read_text(encoding="utf-8"))], name


def test_every_way_to_a_private_name_is_found() -> None:
    source = """
from package.module import _function
self._own = other._attribute
os._exit(module.__name__)
monkeypatch.setattr(module, "_LIMIT", 1)
patch.setattr("package.module._TIMEOUT", 1)
patch.delattr("package.module.public")
"""
    assert sorted(reached(source)) == ["_LIMIT", "_TIMEOUT", "_attribute", "_function"]
