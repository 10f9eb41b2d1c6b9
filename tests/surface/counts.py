"""Count folders, files, names and sentences of each package."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.surface.names import ROOT, SAME, Surface

PACKAGES = {
    "repl_sandbox": ROOT / "sandbox" / "repl_sandbox",
    "repl_env": ROOT / "repl_env",
    "repl_server": ROOT / "server" / "repl_server",
}
# Modules at OpenEnv's paths, and classes with OpenEnv's names on OpenEnv's base classes.
OPENENV = {
    "local.py", "models.py", "interfaces.py", "prompts.py", "recursive_backends.py",
    "recursive_controller.py", "rubrics.py", "runner.py", "openenv.py", "integrations/openenv.py",
    *(f"server/{name}.py" for name in ("app", "python_executor", "repl_environment")),
}  # fmt: skip
_OPENING = re.compile(r"(What|Who|Whoever|Where)\b")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A mark and a space end a sentence; an item of a list and a cell of a table begin one.
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.|#+|>)\s+|\|")
_HEADINGS = (
    "package", "folders", "files", "files per folder", "repeated classes",
    "names at the top of modules", "public names", "their attributes",
)  # fmt: skip


def table(surface: Surface) -> str:
    """Return the counts as a table, with the repeated names below it."""
    rows: list[Iterable[object]] = [_HEADINGS]
    notes = [""]
    for package, root in PACKAGES.items():
        classes = repeated_classes(root)
        rows.append(_row(package, root, len(classes), surface))
        notes.append(f"{package}: classes {' '.join(classes)}")
    notes.append(f"{sum(len(public(surface, package)[0]) for package in PACKAGES)} public names")
    sentences = [*prose()]
    begun = sum(bool(_OPENING.match(sentence)) for sentence in sentences)
    notes.append(
        f"{begun} of {len(sentences)} sentences ({begun / len(sentences):.2%}) "
        "begin with What, Who, Whoever or Where"
    )
    return "\n".join([*("| " + " | ".join(map(str, row)) + " |" for row in rows), *notes])


def _row(package: str, root: Path, classes: int, surface: Surface) -> list[object]:
    folders = Counter(file.parent for file in _counted(root))
    top = sum(len(top_level(file)) for file in _counted(root))
    names, attributes = public(surface, package)
    largest = max(folders.values())
    return [
        package, len(folders), folders.total(), largest, classes, top,
        len(names), len(attributes),
    ]  # fmt: skip


def modules(root: Path) -> list[Path]:
    """Return the Python files of a package, without folders that are not packages (data)."""
    return sorted(file for file in root.rglob("*.py") if (file.parent / "__init__.py").exists())


def _counted(root: Path) -> list[Path]:
    """Return the modules that layout rules count: not `__init__` and not the paths of OpenEnv."""
    return [
        file
        for file in modules(root)
        if file.name != "__init__.py"
        if root.name != "repl_env" or str(file.relative_to(root)) not in OPENENV
    ]


def repeated_classes(root: Path) -> list[str]:
    """Return the names that several classes of a package have."""
    nodes = (node for file in _counted(root) for node in _tree(file).body)
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, times in names.items() if times > 1)


def top_level(file: Path) -> list[str]:
    """Return the functions and classes at the top of a module that have no underscore."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in _tree(file).body if isinstance(node, kinds)]
    return [node.name for node in nodes if not node.name.startswith("_")]


def public(surface: Surface, package: str) -> tuple[set[str], set[str]]:
    """Return a package's public names, each counted once, and the attributes of its classes."""
    listed = {
        f"{module}.{name}"
        for module, names in surface.items()
        if module.partition(".")[0] == package
        for name, text in names.items()
        if not text.startswith(SAME)
    }
    modules_of = [f"{module}." for module in surface]
    names = {name for name in listed if any(_is_name(name, module) for module in modules_of)}
    return names, listed - names


def _is_name(path: str, module: str) -> bool:
    return path.startswith(module) and "." not in path[len(module) :]


def prose() -> Iterator[str]:
    """Yield each sentence of the pages, docstrings and comments."""
    yield from (sentence for _, sentence in _located())


def misbegun() -> Iterator[tuple[Path, str]]:
    """Yield the sentences that begin with What, Who, Whoever or Where, with their files."""
    yield from ((file, text) for file, text in _located() if _OPENING.match(text))


def _located() -> Iterator[tuple[Path, str]]:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.name != "reference.md":  # which repeats docstrings
            text = _CODE.sub("", page.read_text(encoding="utf-8"))
            yield from ((page, sentence) for sentence in _sentences(text))
    for folder in (*PACKAGES.values(), ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"):
        for file in sorted(folder.rglob("*.py")):
            if ".venv" not in str(file):
                for text in _texts(file):
                    yield from ((file, sentence) for sentence in _sentences(text))


def _sentences(text: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(text):
        plain = sentence.strip(' \n-*#>`"')
        if " " in plain:
            yield plain


def _texts(file: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node for node in ast.walk(_tree(file)) if isinstance(node, kinds)]
    yield from (text for node in documented if (text := ast.get_docstring(node)))
    yield "\n".join(_comments(file))


def _comments(file: Path) -> Iterator[str]:
    """Yield the lines of comments, with an empty one between comments apart."""
    last = 0
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == tokenize.COMMENT:
                if token.start[0] != last + 1:
                    yield ""
                yield token.string.lstrip("#: ")
                last = token.start[0]


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
