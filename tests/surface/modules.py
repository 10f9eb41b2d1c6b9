"""docs/design/modules.md, from the first line of each module's docstring."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
MODULES_PAGE = _ROOT / "docs" / "design" / "modules.md"
_PACKAGES = {
    "The engine": "sandbox/repl_sandbox",
    "The environment": "repl_env",
    "The server": "server/repl_server",
}
# Data: the files of tasks, and of Spaces.
_LEFT_OUT = ("repl_env/tasks/sets/", "repl_env/integrations/hf_space/files/")
_HEAD = """# Modules

One row per module, from its docstring; `python -m tests.surface --write` writes this page.
An `__init__` without code has no row.
"""


def modules_page() -> str:
    """The page as it has to be."""
    return "\n".join([_HEAD, *(line for title in _PACKAGES for line in _package(title))])


def _package(title: str) -> Iterator[str]:
    top = _PACKAGES[title]
    folders: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((_ROOT / top).rglob("*.py")):
        if not f"{file.relative_to(_ROOT)}".startswith(_LEFT_OUT) and file.read_text().strip():
            folders[f"{file.parent.relative_to(_ROOT)}"].append(file)
    yield f"## {title}\n"
    for folder, files in sorted(folders.items()):
        yield f"### `{folder}/`\n"
        yield "| file | concept |"
        yield "| --- | --- |"
        yield from (f"| `{file.name}` | {_concept(file)} |" for file in files)
        yield ""


def _concept(file: Path) -> str:
    """The first paragraph of the docstring; the first comment of a file that runs in a session."""
    text = file.read_text(encoding="utf-8")
    found = ast.get_docstring(ast.parse(text)) or text.splitlines()[0].lstrip("# ")
    return " ".join(found.partition("\n\n")[0].split()).replace("|", "\\|")
