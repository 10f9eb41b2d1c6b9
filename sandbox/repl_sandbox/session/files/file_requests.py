"""The requests of `session.files` to the file helper, after the checks of their arguments.

Each function checks its arguments and returns the operation, which may run in another thread.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EFBIG, ENOSPC
from typing import Any, NamedTuple

from ...jail import session_directory
from ...protocol import control_channel
from ...session_limits import parse_size
from ...types import File, Listing
from ..core import Core
from ..session_operations import memfd
from .file_client import FileClient, ask, error_of, refusal, request_keep
from .file_content import in_memory
from .local_files import MemoryFile, Source, Target, check_source, check_target, content_of, write
from .workspace_file import WorkspaceFile
from .workspace_paths import parse

# Entries of one listing.
MAX_ROWS = 1_000_000
# Bytes that a caller holds in memory, unless it asks for more.
IN_MEMORY = 64 << 20
_SLOWEST = 4 << 20  # bytes per second that any disk achieves
_SLOWEST_ROWS = 10_000  # entries per second that any directory listing achieves
# Bounds of the files that one helper writes: bytes of their names, in one message, and bytes of
# their contents, in memory.
_MAX_TEXT, _MAX_BYTES = 48 << 10, 16 << 20


def putting(core: Core, path: str, data: Source | MemoryFile) -> Callable[[], None]:
    """The steps of `put`, after the checks of its arguments."""
    names = _named(core, path)
    check_source(data, "data")

    def put() -> None:
        source, size = in_memory(data, path, int(core.limits.file_size))
        try:
            new_files = [_NewFile(path, names, size)]
            _check_room(core, new_files)
            with _included_in_state(core):
                _send(core, new_files, source)
        finally:
            os.close(source)

    return put


def putting_all(core: Core, files: Mapping[str, bytes | str]) -> Callable[[], None]:
    """The steps of `put_all`, after the checks of its arguments."""
    limit = int(core.limits.file_size)
    new_files, contents = [], {}
    for path, content in contents_of(files):
        if len(content) > limit:
            raise error_of(EFBIG, path, f"the limit is {limit:,} bytes (file_size)")
        new_files.append(_NewFile(path, _named(core, path), len(content)))
        contents[path] = content

    def put() -> None:
        if not new_files:
            return
        _check_room(core, new_files)
        with _included_in_state(core):
            for batch in _batches(new_files):
                source, _ = memfd(b"".join(contents[each.path] for each in batch))
                try:
                    _send(core, batch, source)
                finally:
                    os.close(source)

    return put


@contextmanager
def _included_in_state(core: Core) -> Iterator[None]:
    """Have the files that the block writes belong to the state that recovery may restore."""
    try:
        yield
    finally:
        if core.recovery.has_snapshots:
            request_keep(core)


class _NewFile(NamedTuple):
    """A file to write into the workspace."""

    path: str
    names: Sequence[str]
    size: int


def _batches(new_files: Iterable[_NewFile]) -> Iterator[list[_NewFile]]:
    """Divide files among helpers: the names fit into one message, the contents into little
    memory.
    """
    batch: list[_NewFile] = []
    text = size = 0
    for each in new_files:
        row = len(json.dumps([each.names, each.size])) + 2
        if batch and (text + row > _MAX_TEXT or size + each.size > _MAX_BYTES):
            yield batch
            batch, text, size = [], 0, 0
        batch.append(each)
        text, size = text + row, size + each.size
    if batch:
        yield batch


def _send(core: Core, batch: Sequence[_NewFile], source: int) -> None:
    """Have a helper write the files of `batch`, which lie one behind the other in `source`."""
    request = {
        "op": "put",
        "files": [[each.names, each.size] for each in batch],
        "token": secrets.token_hex(8),
    }
    extra_seconds = sum(each.size for each in batch) / _SLOWEST + len(batch) / _SLOWEST_ROWS
    ask(core, [each.path for each in batch], request, _done, (source,), extra_seconds)


def opening(core: Core, path: str, limit: int | None = None) -> Callable[[], WorkspaceFile]:
    """The steps of `open`, and of `get`, after the checks of their arguments.

    The file has at most `limit` bytes, by default as many as the session may write.
    """
    names = _named(core, path)
    limit = int(core.limits.file_size) if limit is None else limit

    def opened(message: control_channel.Message, helper: FileClient, fd: int) -> WorkspaceFile:
        return WorkspaceFile(path, os.dup(fd), limit)

    return lambda: ask(core, [path], {"op": "get", "names": names}, opened)


def getting(
    core: Core, path: str, to: Target | None, limit: int | str | None
) -> Callable[[], bytes | int]:
    """The steps of `get`, after the checks of its arguments."""
    default = IN_MEMORY if to is None else int(core.limits.file_size)
    opened = opening(core, path, default if limit is None else parse_size(limit, "limit"))
    check_target(to)

    def get() -> bytes | int:
        with opened() as file:
            return file.read() if to is None else write(file.chunks(), to)

    return get


def getting_all(
    core: Core, paths: Iterable[str], limit: int | str
) -> Callable[[], dict[str, bytes | OSError]]:
    """The steps of `get_all`, after the checks of its arguments."""
    named = [(path, _named(core, path)) for path in paths]
    max_bytes = parse_size(limit, "limit")

    def read(
        message: control_channel.Message, helper: FileClient, fd: int
    ) -> dict[str, bytes | OSError]:
        found: dict[str, bytes | OSError] = {}
        remaining = max_bytes
        for path, names in named:
            found[path] = content = _read_next(helper, path, names, remaining)
            remaining -= len(content) if isinstance(content, bytes) else 0
        return found

    def get() -> dict[str, bytes | OSError]:
        if not named:
            return {}
        extra_seconds = max_bytes / _SLOWEST + len(named) / _SLOWEST_ROWS
        return ask(core, [named[0][0]], {"op": "each"}, read, (), extra_seconds)

    return get


def listing(core: Core, path: str, limit: int) -> Callable[[], Listing]:
    """The steps of `list`, after the checks of its arguments."""
    names = parse(path, core.links.tier)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 0 < limit <= MAX_ROWS:
        raise ValueError(f"limit must be from 1 to {MAX_ROWS:,}")
    request = {"op": "list", "names": names, "limit": limit}
    return lambda: ask(core, [path], request, _rows, (), limit / _SLOWEST_ROWS)


def _named(core: Core, path: str) -> Sequence[str]:
    names = parse(path, core.links.tier)
    if not names:
        raise ValueError(f"path {path!r} names no file")
    return names


def contents_of(files: object) -> Sequence[tuple[str, bytes]]:
    """Return the paths and contents of `files`; raise TypeError or ValueError naming the fault."""
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths, not {type(files).__name__}")
    return [(path, content_of(data, f"files: {path!r}")) for path, data in files.items()]


def _check_room(core: Core, new_files: Iterable[_NewFile]) -> None:
    """Check the limit of the workspace, where no mount enforces it."""
    workspace, folder = int(core.limits.workspace), core.links.folder
    if not folder:
        return
    with suppress(FileNotFoundError):
        used = session_directory.use(folder, workspace)
        for each in new_files:
            used += each.size
            if used > workspace:
                raise refusal(core, ENOSPC, each.path)


def _done(message: control_channel.Message, helper: FileClient, fd: int) -> None:
    return None


def _read_next(helper: FileClient, path: str, names: Sequence[str], limit: int) -> bytes | OSError:
    message, fd = helper.next({"names": names})
    if "errno" in message:
        return error_of(message["errno"], path)
    try:
        with WorkspaceFile(path, fd, limit) as file:
            return file.read()
    except OSError as error:
        return error


def _rows(message: control_channel.Message, helper: FileClient, fd: int) -> Listing:
    rows: list[list[Any]] = []
    while "rows" in message:
        rows += message["rows"]
        message, _ = helper.receive()
    if "errno" in message:
        raise OSError(message["errno"], os.strerror(message["errno"]))
    files = [File(path, size, kind, modified) for path, kind, size, modified in rows]
    return Listing(sorted(files, key=lambda file: file.path), complete=message["complete"])
