"""Files that an episode begins with: checked here, written into the session's workspace.

A file is given by its path in the workspace and its content: bytes, text, or a `pathlib.Path` that
is read here, on the caller's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from repl_sandbox.session.paths import parse

Files: TypeAlias = "Mapping[str, str | bytes | Path]"


def contents(files: Files | None) -> dict[str, bytes]:
    """The files by their paths in the workspace.

    Raises:
        TypeError, ValueError: naming `files` and the path that is wrong.
        OSError: a Path cannot be read.
    """
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths, not {type(files).__name__}")
    return {_path(path): _content(path, given) for path, given in files.items()}


def _path(path: object) -> str:
    if not isinstance(path, str):
        raise TypeError(f"files: a path must be a str, not {type(path).__name__}")
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"files: {path!r} is not a path inside the workspace")
    try:
        parse(path)
    except ValueError as error:
        raise ValueError(f"files: {error}") from None
    return str(PurePosixPath(path))


def _content(path: str, given: object) -> bytes:
    if isinstance(given, Path):
        return given.read_bytes()
    if isinstance(given, str):
        try:
            return given.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"files: {path!r}: {error}") from None
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"files: {path!r} must be bytes, str or a Path, not {type(given).__name__}")
