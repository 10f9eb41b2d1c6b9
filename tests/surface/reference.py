"""Write docs/reference.md: the signature and the docstring of each public name."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.surface.exports import exported
from tests.surface.names import ROOT, SAME, Surface, importable

PAGE = ROOT / "docs" / "reference.md"
HEAD = """\
# API reference

Every public name, by module. Names that are not on this page are internal and may change. The page
is written by `python -m tests.surface --write` from docs/public_names.toml and the docstrings.
"""
_EXAMPLE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    (\w[\w, `*]*): (.*)$")


def reference(surface: Surface) -> str:
    """Return the page; sections of modules that cannot be imported here stay as written."""
    old = sections(PAGE)
    contents = "\n".join(f"- [{module}](#{module.replace('.', '')})" for module in surface)
    parts = [f"{HEAD}\n{contents}\n"]
    for module, names in surface.items():
        kept = old.get(module, f"## {module}\n")
        parts.append(section(module, names) if importable(module) else kept)
    return "\n".join(parts)


def sections(page: Path) -> dict[str, str]:
    """Return the sections of the page by module."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def section(module: str, names: dict[str, str]) -> str:
    """Return the section of a module."""
    value = import_module(module)
    parts = [f"## {module}", _first_paragraph(value)]
    same = [f"`{text.removeprefix(SAME)}`" for text in names.values() if text.startswith(SAME)]
    if same:
        parts.append("Also here: " + ", ".join(same) + ".")
    for name, text in names.items():
        if "." not in name and not text.startswith(SAME):
            parts += _name(name, names, module)
    return "\n\n".join(part for part in parts if part) + "\n"


def _name(name: str, names: dict[str, str], module: str) -> Iterator[str]:
    declared = textwrap.wrap(
        _declaration(name, names[name]),
        width=96,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield "\n".join(["```python", *declared, "```"])
    if not names[name].startswith("constant"):
        value = exported(module, name)
        yield _document(value)
        yield from _members(name, names, value)


def _members(name: str, names: dict[str, str], cls: object) -> Iterator[str]:
    """Yield the list of attributes: those with a docstring or a signature, then the others."""
    rows, plain = [], []
    for key, text in names.items():
        owner, _, member = key.rpartition(".")
        if owner == name:
            shown = f"`{_declaration(member, text)}`"
            value = inspect.getattr_static(cls, member, None)
            meaning = _first_paragraph(value).replace("\n", " ")
            if meaning and not text.startswith("attribute"):
                rows.append(f"- {shown}: {meaning}")
                rows += [f"\n{textwrap.indent(code, '    ')}\n" for code in _examples(value)]
            else:
                plain.append(shown)
    if plain:
        rows.append(f"- also {', '.join(plain)}")
    if rows:
        yield "\n".join(rows)


def _declaration(name: str, text: str) -> str:
    """Put the name into a description: "def (x)" becomes "def name(x)"."""
    if text.startswith(("property", "attribute", "constant")):
        kind = text.partition(" ")[2]
        return f"{name}: {kind}" if kind else name
    word, _, signature = text.partition(" (")
    return f"{word} {name}({signature}" if signature else f"{word} {name}"


def _document(value: object) -> str:
    """Return the docstring, with its sections of arguments and errors as lists."""
    lines: list[str] = []
    is_code = False
    for line in _doc(value).splitlines():
        if is_code or line.startswith("```"):
            is_code ^= line.startswith("```")
            lines.append(line)
            continue
        heading = re.fullmatch(r"(Args|Raises|Returns|Yields|Attributes):", line)
        field = _FIELD.match(line)
        if heading:
            lines += [f"{heading[1]}:", ""]
        elif field:
            lines.append(f"- `{field[1]}`: {field[2]}")
        else:
            lines.append(f"  {line.strip()}" if line.startswith("     ") else line.strip())
    return "\n".join(lines)


def _examples(value: object) -> list[str]:
    """Return the fenced examples of a docstring."""
    return _EXAMPLE.findall(_doc(value))


def _first_paragraph(value: object) -> str:
    return _doc(value).partition("\n\n")[0]


def _doc(value: object) -> str:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    text = getattr(value, "__doc__", None) or ""
    is_generated = text.startswith(f"{getattr(value, '__name__', '')}(")  # by dataclasses
    return "" if is_generated else inspect.cleandoc(text)
