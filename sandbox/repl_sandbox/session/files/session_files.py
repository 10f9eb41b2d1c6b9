"""`session.files`: what a session's workspace holds, put there, read and listed by the host.

The code of the session may change every name while this looks. So the host opens no path of the
session: init's clerk does, below the workspace and without following links, with the rights of the
session's code; the host gets a descriptor, sees that it is a file, and reads so many bytes of it.
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

_SLOWEST = 4 << 20  # bytes a second that any disk takes
_SLOWEST_ROWS = 10_000  # entries a second that any directory shows
_MOST_ROWS = 1_000_000
# Of the files that one clerk makes: bytes of their names, in a message, and of them, in memory.
_MOST_TEXT, _MOST_BYTES = 48 << 10, 16 << 20


class SessionFiles:
    """Files of a session's workspace. Not while a cell runs: that is SessionBusy.

    Paths are relative to the workspace. Links are not followed, archives not unpacked: a cell can
    do that, inside. All raise SessionClosed and SessionBusy as `Session.run`, TypeError and
    ValueError naming the argument, and OSError with the path: PermissionError where the session's
    own code may not either.
    """

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    def put(self, path: str, data: bytes | str) -> None:
        """Make `data` (a str as UTF-8) the file `path`; directories above it are made.

        A regular file is replaced, all at once; nothing else is. If there is no room, there is no
        file: OSError with ENOSPC (`Limits.workspace`) or EFBIG (`Limits.file_size`).
        """
        self._do(putting(self._handle._core, [(path, _content(data, "data"))]))

    def put_all(self, files: Mapping[str, bytes | str]) -> None:
        """`put` for each of these, in their order and much faster than one by one.

        What is wrong with a path, or a size, is said before anything is written. If there is no
        room, or something is in the way, the files before that one are there.
        """
        self._do(putting(self._handle._core, _contents(files)))

    def get(self, path: str, *, limit: int | str = "64MiB") -> bytes:
        """The content of the regular file `path`, as long as it was when it was opened.

        OSError with EFBIG if that is more than `limit` bytes; FileNotFoundError,
        IsADirectoryError.
        """
        return self._do(getting(self._handle._core, path, limit))

    def get_all(
        self, paths: Iterable[str], *, limit: int | str = "64MiB"
    ) -> dict[str, bytes | OSError]:
        """The contents of these regular files, much faster than one by one.

        In place of one that cannot be read is the OSError that says why; of one, too, with which
        it would be more than `limit` bytes in all.
        """
        return self._do(getting_all(self._handle._core, paths, limit))

    def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """What is below directory `path`, 64 levels deep, at most `limit` entries.

        Links are told and not followed. Paths are told from the workspace, in their order.
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
        # Before the thread begins, which nobody can take back.
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
            # It cannot be stopped in the middle; who goes on with the session finds it free.
            await asyncio.wait({doing})
            raise


# ── what is asked, with the checks of each argument ───────────────────────────────────────────


def putting(core: Core, files: Iterable[tuple[str, bytes]]) -> Callable[[], None]:
    """What `put` and `put_all` do, once their arguments are checked."""
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
                # They belong to the state that the next cell may have to go back to.
                have_kept(core)

    return put


class _Coming(NamedTuple):
    """A file that is to be in the workspace."""

    path: str
    names: Sequence[str]
    content: bytes


def _batches(coming: Iterable[_Coming]) -> Iterator[list[_Coming]]:
    """Files for one clerk each: the names fit into a message, the contents into little memory."""
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
    alone = len(batch) == 1  # and perhaps large: not copied once more
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
    """What `get` does, once its arguments are checked."""
    names, most = _named(core, path), parse_size(limit, "limit")

    def read(message: control_channel.Message, clerk: FileClient, fd: int) -> bytes:
        return _read(path, fd, most)

    return lambda: ask(core, [path], {"op": "get", "names": names}, read)


def getting_all(
    core: Core, paths: Iterable[str], limit: int | str
) -> Callable[[], dict[str, bytes | OSError]]:
    """What `get_all` does, once its arguments are checked."""
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
    """What `list` does, once its arguments are checked."""
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
    """Where no mount bounds a session's files: whether there is room for these as well."""
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
    """The file that is open as `fd`, whatever is its name by now."""
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
