"""Write docs/reference.md: the signature and the docstring of each public name."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path

from tests.surface.exports import exported
from tests.surface.names import ROOT, SAME, Surface, importable

PAGE = ROOT / "docs" / "reference.md"
HEAD = """\
# API reference

Every public name, by module. Names that are not on this page are internal and may change. The page
is written by `python -m tests.surface --write` from docs/public_names.toml and the docstrings.
"""
_WIDTH = 76  # characters of code that the site shows beside its columns
_EXAMPLE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    (\w[\w, `*]*): (.*)$")


def reference(surface: Surface) -> str:
    """Return the page; sections of modules that cannot be imported here stay as written."""
    old = sections(PAGE)
    contents = "\n".join(f"- [{module}](#{module.replace('.', '')})" for module in surface)
    parts = [f"{HEAD}\n{contents}\n"]
    for module, names in surface.items():
        kept = old.get(module, f"## {module}\n")
        made = importable(module)
        parts.append(section(module, names, headings(surface, module)) if made else kept)
    return "\n".join(parts)


def headings(surface: Surface, module: str) -> dict[str, str]:
    """Return the headings of the names of a module; repeated names stand with the module."""
    earlier = takewhile(lambda item: item[0] != module, surface.items())
    taken = {name.lower() for _, names in earlier for name in _described(names)}
    return {
        name: f"{module}.{name}" if name.lower() in taken else name
        for name in _described(surface[module])
    }


def _described(names: dict[str, str]) -> list[str]:
    """Return the names at the top of a module that no earlier module describes."""
    return [name for name, text in names.items() if "." not in name and not text.startswith(SAME)]


def sections(page: Path) -> dict[str, str]:
    """Return the sections of the page by module."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def section(module: str, names: dict[str, str], headings: dict[str, str]) -> str:
    """Return the section of a module, with these headings of its names."""
    value = import_module(module)
    parts = [f"## {module}", _first_paragraph(value)]
    same = [f"`{text.removeprefix(SAME)}`" for text in names.values() if text.startswith(SAME)]
    if same:
        parts.append("Also here: " + ", ".join(same) + ".")
    for name in _described(names):
        parts += [f"### {headings[name]}", *_name(name, names, module)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _name(name: str, names: dict[str, str], module: str) -> Iterator[str]:
    yield f"```python\n{_laid_out(_declaration(name, names[name]))}\n```"
    if not names[name].startswith("constant"):
        value = exported(module, name)
        yield _document(value)
        yield from _members(name, names, value)


def _laid_out(declaration: str) -> str:
    """Return a declaration with a line for each parameter if it is long."""
    if len(declaration) <= _WIDTH:
        return declaration
    head, bracket, rest = declaration.partition("(")
    lines, depth, start = [f"{head}{bracket}"], 0, 0
    for place, character in enumerate(rest):
        depth += character in "([{"
        depth -= character in ")]}"
        if depth == -1:
            parameters, after = rest[start:place].strip(), rest[place:]
            return "\n".join([*lines, f"    {parameters},", after] if parameters else [declaration])
        if character == "," and not depth:
            lines.append(f"    {rest[start : place + 1].strip()}")
            start = place + 1
    return declaration


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
