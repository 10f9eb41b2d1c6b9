"""Command files: functions and scripts that an agent has besides its own code."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from pathlib import Path


def read_command_files(paths: Iterable[str | os.PathLike[str]]) -> list[dict[str, str]]:
    """The files as MLGym's `add_commands` takes them: each with `name`, `type`, `contents`.

    A file that begins with `#!` is a "script"; a `.sh` or `.py` file is a "source_file", whose
    functions are commands; one whose name begins with `_` is a "utility".

    Raises:
        ValueError: the file is none of these.
    """
    return [_read(Path(path)) for path in paths]


def _read(path: Path) -> dict[str, str]:
    contents = path.read_text(encoding="utf-8")
    name = path.name
    if contents.lstrip().startswith("#!"):
        return {"contents": contents, "name": name.rsplit(".", 1)[0], "type": "script"}
    if name.startswith("_"):
        return {"contents": contents, "name": name, "type": "utility"}
    if path.suffix in (".sh", ".py"):
        return {"contents": contents, "name": name, "type": "source_file"}
    raise ValueError(
        f"command file {path}: it neither begins with '#!', which makes it a script, nor is it a "
        ".py or .sh file, nor does its name begin with '_', which makes it a utility"
    )


def documented(files: Iterable[dict[str, str]]) -> str:
    """The signature and the docstring of each public function of the Python files."""
    docs = []
    for file in files:
        if file["type"] == "source_file" and file["name"].endswith(".py"):
            docs += [_documented(node) for node in _functions(file)]
    return "\n".join(docs)


def _functions(file: dict[str, str]) -> list[ast.FunctionDef]:
    try:
        tree = ast.parse(file["contents"], file["name"])
    except SyntaxError as error:
        raise ValueError(f"command file {file['name']}: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if not node.name.startswith("_")]


def _documented(node: ast.FunctionDef) -> str:
    doc = (ast.get_docstring(node) or "").replace("\n", "\n  ")
    return f"- {node.name}({ast.unparse(node.args)})" + (f": {doc}" if doc else "")
