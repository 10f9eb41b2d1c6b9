"""`session.files`: the host puts, reads and lists files of a session's workspace.

Code of the session may rename every file meanwhile. So the host opens no path of the session:
init's file helper does, below the workspace, without following links and with the rights of the
session's code. The host gets a descriptor, checks that it is a regular file, and reads a bounded
number of bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import EFBIG, EINVAL, EISDIR, ENOSPC
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...jail import session_directory
from ...protocol import control_channel
from ...types import File, Listing, parse_size
from ..core import Core
from ..session_operations import memfd
from ..thread_offload import put_in_thread
from .file_client import FileClient, ask, error_of, have_kept, refusal
from .workspace_paths import parse

if TYPE_CHECKING:
    from ..drivers.session_handle import SessionHandle

_T = TypeVar("_T")

_SLOWEST = 4 << 20  # bytes per second that any disk achieves
_SLOWEST_ROWS = 10_000  # entries per second that any directory listing achieves
_MOST_ROWS = 1_000_000
# Bounds of the files that one helper writes: bytes of their names, in one message, and bytes of
# their contents, in memory.
_MOST_TEXT, _MOST_BYTES = 48 << 10, 16 << 20


class SessionFiles:
    """The files of a session's workspace; SessionBusy while a cell runs.

    Paths are relative to the workspace. Links are not followed, archives not unpacked: a cell can
    do that. All methods raise SessionClosed and SessionBusy as `Session.run`, TypeError and
    ValueError naming the argument, and OSError with the path: PermissionError where the session's
    own code has no permission either.
    """

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    def put(self, path: str, data: bytes | str) -> None:
        """Write `data` (a str as UTF-8) to the file `path`; directories above it are made.

        A regular file is replaced, atomically; nothing else is. If the space does not suffice,
        there is no file: OSError with ENOSPC (`Limits.workspace`) or EFBIG (`Limits.file_size`).
        """
        self._do(putting(self._handle._core, [(path, _content(data, "data"))]))

    def put_all(self, files: Mapping[str, bytes | str]) -> None:
        """As `put` for each of these files in order, but much faster than one by one.

        Errors of paths and sizes are raised before anything is written. After another error the
        files before the faulty one are there.
        """
        self._do(putting(self._handle._core, _contents(files)))

    def get(self, path: str, *, limit: int | str = "64MiB") -> bytes:
        """Return the content of the regular file `path`, as long as it was when it was opened.

        OSError with EFBIG if that is more than `limit` bytes; FileNotFoundError, IsADirectoryError.
        """
        return self._do(getting(self._handle._core, path, limit))

    def get_all(
        self, paths: Iterable[str], *, limit: int | str = "64MiB"
    ) -> dict[str, bytes | OSError]:
        """Return the contents of these regular files, much faster than one by one.

        A file that cannot be read, or would exceed `limit` bytes in all, is represented by its
        OSError.
        """
        return self._do(getting_all(self._handle._core, paths, limit))

    def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """List directory `path`, 64 levels deep, at most `limit` entries.

        Links are listed and not followed. Paths are relative to the workspace, and sorted.
        """
        return self._do(listing(self._handle._core, path, limit))

    def _do(self, operation: Callable[[], _T]) -> _T:
        core = self._handle._core
        try:
            for taken in core.takes:  # as in `Session.run`
                if not taken:
                    break
                try:
                    self._handle._enter()
                    return operation()
                finally:
                    core.busy.release()
        finally:
            core.left()
        raise self._handle._busy()


class AsyncSessionFiles:
    """`SessionFiles`, awaited."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    async def put(self, path: str, data: bytes | str) -> None:
        """As `SessionFiles.put`."""
        await self._do(putting(self._handle._core, [(path, _content(data, "data"))]))

    async def put_all(self, files: Mapping[str, bytes | str]) -> None:
        """As `SessionFiles.put_all`."""
        await self._do(putting(self._handle._core, _contents(files)))

    async def get(self, path: str, *, limit: int | str = "64MiB") -> bytes:
        """As `SessionFiles.get`."""
        return await self._do(getting(self._handle._core, path, limit))

    async def get_all(
        self, paths: Iterable[str], *, limit: int | str = "64MiB"
    ) -> dict[str, bytes | OSError]:
        """As `SessionFiles.get_all`."""
        return await self._do(getting_all(self._handle._core, paths, limit))

    async def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """As `SessionFiles.list`."""
        return await self._do(listing(self._handle._core, path, limit))

    async def _do(self, operation: Callable[[], _T]) -> _T:
        core = self._handle._core
        self._handle._claim()
        # The claim is taken before the thread begins, because a thread cannot be cancelled.
        core.io.init.told = True
        try:
            doing = put_in_thread(operation)
        except BaseException:
            core.release()
            raise
        doing.add_done_callback(lambda _: core.release())
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            # The thread cannot be stopped in the middle; the next caller finds the session free.
            await asyncio.wait({doing})
            raise


# ── what is asked, with the checks of each argument ───────────────────────────────────────────


def putting(core: Core, files: Iterable[tuple[str, bytes]]) -> Callable[[], None]:
    """The steps of `put` and `put_all`, after the checks of their arguments."""
    most = int(core.limits.file_size)
    coming = []
    for path, content in files:
        coming.append(_Coming(path, _named(core, path), content))
        if len(content) > most:
            raise error_of(EFBIG, path, f"the limit is {most:,} bytes (file_size)")

    def put() -> None:
        if not coming:
            return
        _check_room(core, coming)
        try:
            for batch in _batches(coming):
                _send(core, batch)
        finally:
            if core.recovery.keeps:
                # The files belong to the state that recovery may have to restore.
                have_kept(core)

    return put


class _Coming(NamedTuple):
    """A file to write into the workspace."""

    path: str
    names: Sequence[str]
    content: bytes


def _batches(coming: Iterable[_Coming]) -> Iterator[list[_Coming]]:
    """Divide files among helpers: the names fit into one message, the contents into little
    memory.
    """
    batch: list[_Coming] = []
    text = size = 0
    for each in coming:
        row = len(json.dumps([each.names, len(each.content)])) + 2
        if batch and (text + row > _MOST_TEXT or size + len(each.content) > _MOST_BYTES):
            yield batch
            batch, text, size = [], 0, 0
        batch.append(each)
        text, size = text + row, size + len(each.content)
    if batch:
        yield batch


def _send(core: Core, batch: Sequence[_Coming]) -> None:
    alone = len(batch) == 1  # perhaps large: not copied once more
    source, size = memfd(batch[0].content if alone else b"".join(each.content for each in batch))
    request = {
        "op": "put",
        "files": [[each.names, len(each.content)] for each in batch],
        "token": secrets.token_hex(8),
    }
    longer = size / _SLOWEST + len(batch) / _SLOWEST_ROWS
    try:
        ask(core, [each.path for each in batch], request, _done, (source,), longer)
    finally:
        os.close(source)


def getting(core: Core, path: str, limit: int | str) -> Callable[[], bytes]:
    """The steps of `get`, after the checks of its arguments."""
    names, most = _named(core, path), parse_size(limit, "limit")

    def read(message: control_channel.Message, clerk: FileClient, fd: int) -> bytes:
        return _read(path, fd, most)

    return lambda: ask(core, [path], {"op": "get", "names": names}, read)


def getting_all(
    core: Core, paths: Iterable[str], limit: int | str
) -> Callable[[], dict[str, bytes | OSError]]:
    """The steps of `get_all`, after the checks of its arguments."""
    named = [(path, _named(core, path)) for path in paths]
    most = parse_size(limit, "limit")

    def read(
        message: control_channel.Message, clerk: FileClient, fd: int
    ) -> dict[str, bytes | OSError]:
        found: dict[str, bytes | OSError] = {}
        left = most
        for path, names in named:
            found[path] = content = _read_next(clerk, path, names, left)
            left -= len(content) if isinstance(content, bytes) else 0
        return found

    def get() -> dict[str, bytes | OSError]:
        if not named:
            return {}
        longer = most / _SLOWEST + len(named) / _SLOWEST_ROWS
        return ask(core, [named[0][0]], {"op": "each"}, read, (), longer)

    return get


def listing(core: Core, path: str, limit: int) -> Callable[[], Listing]:
    """The steps of `list`, after the checks of its arguments."""
    names = parse(path, core.links.tier)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 0 < limit <= _MOST_ROWS:
        raise ValueError(f"limit must be from 1 to {_MOST_ROWS:,}")
    request = {"op": "list", "names": names, "limit": limit}
    return lambda: ask(core, [path], request, _rows, (), limit / _SLOWEST_ROWS)


def _named(core: Core, path: str) -> Sequence[str]:
    names = parse(path, core.links.tier)
    if not names:
        raise ValueError(f"path {path!r} names no file")
    return names


def _contents(files: object) -> Sequence[tuple[str, bytes]]:
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths, not {type(files).__name__}")
    return [(path, _content(data, f"files: {path!r}")) for path, data in files.items()]


def _content(data: object, name: str) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} cannot be written as UTF-8: {error}") from None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{name} must be bytes or str, not {type(data).__name__}")


def _check_room(core: Core, coming: Iterable[_Coming]) -> None:
    """Check the limit of the workspace, where no mount enforces it."""
    workspace, folder = int(core.limits.workspace), core.links.folder
    if not folder:
        return
    with suppress(FileNotFoundError):
        used = session_directory.use(folder, workspace)
        for each in coming:
            used += len(each.content)
            if used > workspace:
                raise refusal(core, ENOSPC, each.path)


def _done(message: control_channel.Message, clerk: FileClient, fd: int) -> None:
    return None


def _read_next(clerk: FileClient, path: str, names: Sequence[str], most: int) -> bytes | OSError:
    message, fd = clerk.next({"names": names})
    try:
        if "errno" in message:
            return error_of(message["errno"], path)
        return _read(path, fd, most)
    except OSError as error:
        return error
    finally:
        if fd >= 0:
            os.close(fd)


def _read(path: str, fd: int, most: int) -> bytes:
    """Read the file that is open as `fd`, whatever its name is by now."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise error_of(EISDIR if stat.S_ISDIR(status.st_mode) else EINVAL, path)
    if status.st_size > most:
        raise error_of(EFBIG, path, f"{status.st_size:,} bytes; the limit is {most:,}")
    with open(fd, "rb", closefd=False) as file:
        return file.read(status.st_size)


def _rows(message: control_channel.Message, clerk: FileClient, fd: int) -> Listing:
    rows: list[list[Any]] = []
    while "rows" in message:
        rows += message["rows"]
        message, _ = clerk.receive()
    if "errno" in message:
        raise OSError(message["errno"], os.strerror(message["errno"]))
    files = [File(path, size, kind, modified) for path, kind, size, modified in rows]
    return Listing(sorted(files, key=lambda file: file.path), complete=message["complete"])
