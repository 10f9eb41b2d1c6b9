"""Files that an episode begins with: checked here, written into the session's workspace.

A file is a path in the workspace and a content: bytes, text, or a `pathlib.Path` that is read here,
on the caller's side.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from errno import EFBIG, ENOSPC
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from repl_env.common.files import read_regular
from repl_sandbox.session.files import parse
from repl_sandbox.types import Limits

Files: TypeAlias = "Mapping[str, str | bytes | Path]"


def contents(files: Files | None, limits: Limits) -> dict[str, bytes]:
    """Return the files by their paths in the workspace.

    Files that exceed a session's limits are refused before there is a session.

    Raises:
        TypeError, ValueError: naming `files` and the invalid path.
        OSError: a Path cannot be read; a file, or all files together, exceed the limit.
    """
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths, not {type(files).__name__}")
    bytes_left = int(limits.workspace)
    contents_by_path: dict[str, bytes] = {}
    for path, content in files.items():
        workspace_path = _path(path)
        if workspace_path in contents_by_path:
            raise ValueError(f"files: {workspace_path!r} is given twice")
        contents_by_path[workspace_path] = _content(path, content, int(limits.file_size))
        bytes_left -= len(contents_by_path[workspace_path])
        if bytes_left < 0:
            raise _no_room(ENOSPC, path, int(limits.workspace), "workspace")
    _check_places(contents_by_path)
    return contents_by_path


def _check_places(paths: Collection[str]) -> None:
    """Raise ValueError if one path is a file and a prefix of another."""
    for path in paths:
        for above in PurePosixPath(path).parents:
            if str(above) in paths:
                raise ValueError(f"files: {str(above)!r} is a file, and {path!r} is below it")


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


def _content(path: str, data: object, max_bytes: int) -> bytes:
    if isinstance(data, Path):
        if data.stat().st_size > max_bytes:
            raise _no_room(EFBIG, path, max_bytes, "file_size")
        data = read_regular(data)
    elif isinstance(data, str):
        try:
            data = data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"files: {path!r}: {error}") from None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"files: {path!r} must be bytes, str or a Path, not {type(data).__name__}")
    content = bytes(data)
    if len(content) > max_bytes:
        raise _no_room(EFBIG, path, max_bytes, "file_size")
    return content


def _no_room(code: int, path: str, max_bytes: int, limit: str) -> OSError:
    return OSError(code, f"{os.strerror(code)}; the limit is {max_bytes:,} bytes ({limit})", path)
