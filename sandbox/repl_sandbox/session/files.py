"""`session.files`: what a session's workspace holds, put there, read and listed by the host.

The code of the session may change every name while this looks. So the host opens no path of the
session: init's clerk does, below the workspace and without following links, with the rights of the
session's code; the host gets a descriptor, sees that it is a file, and reads so many bytes of it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EAGAIN, EFBIG, EINVAL, EISDIR, ELOOP, ENOSPC, ENOTDIR
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import SandboxError, SessionClosed
from ..jail import folders
from ..types import File, Listing, parse_size
from ..zygote import control
from .core import Core
from .paths import parse
from .requests import memfd

if TYPE_CHECKING:
    from .handle import Handle

_T = TypeVar("_T")

# Seconds for all that an attempt takes: code with the clerk's uid may be able to stop it and let it
# go on, before Linux 6.12. One is forked in milliseconds; a machine that swaps takes a thousand
# times that.
_PATIENCE = 60.0
_SLOWEST = 4 << 20  # bytes a second that any disk takes
_SLOWEST_ROWS = 10_000  # entries a second that any directory shows
# A worker's death ends a clerk that is at work. There is no other worker to die before a cell is
# run, so whoever ends the second is the session's code, and would end the third.
_ATTEMPTS = 2
_MOST_ROWS = 1_000_000

_NO_INIT = "the session's init process is gone; open another session"

# Where the kernel's words say too little, or something else.
_WORDS = {
    EAGAIN: "Processes of the session are at their limit, or hold the file",
    EINVAL: "Not a regular file",
    ELOOP: "A symbolic link, which is not followed",
    ENOTDIR: "Not a directory (links are not followed)",
}


class SessionFiles:
    """Files of a session's workspace. Not while a cell runs: that is SessionBusy.

    Paths are relative to the workspace. Links are not followed, archives not unpacked: a cell can
    do that, inside. All raise SessionClosed and SessionBusy as `Session.run`, TypeError and
    ValueError naming the argument, and OSError with the path: PermissionError where the session's
    own code may not either.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def put(self, path: str, data: bytes | str) -> None:
        """Make `data` (a str as UTF-8) the file `path`; directories above it are made.

        A regular file is replaced, all at once; nothing else is. If there is no room, there is no
        file: OSError with ENOSPC (`Limits.workspace`) or EFBIG (`Limits.file_size`).
        """
        self._do(putting(self._handle._core, path, data))

    def get(self, path: str, *, limit: int | str = "64MiB") -> bytes:
        """The content of the regular file `path`, as long as it was when it was opened.

        OSError with EFBIG if that is more than `limit` bytes; FileNotFoundError,
        IsADirectoryError.
        """
        return self._do(getting(self._handle._core, path, limit))

    def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """What is below directory `path`, 64 levels deep, at most `limit` entries.

        Links are told and not followed. Paths are told from the workspace, in their order.
        """
        return self._do(listing(self._handle._core, path, limit))

    def _do(self, operation: Callable[[], _T]) -> _T:
        self._handle._claim()
        try:
            return operation()
        finally:
            self._handle._core.release()


class AsyncSessionFiles:
    """`SessionFiles`, awaited."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def put(self, path: str, data: bytes | str) -> None:
        """As `SessionFiles.put`."""
        await self._do(putting(self._handle._core, path, data))

    async def get(self, path: str, *, limit: int | str = "64MiB") -> bytes:
        """As `SessionFiles.get`."""
        return await self._do(getting(self._handle._core, path, limit))

    async def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """As `SessionFiles.list`."""
        return await self._do(listing(self._handle._core, path, limit))

    async def _do(self, operation: Callable[[], _T]) -> _T:
        self._handle._claim()
        try:
            task = asyncio.create_task(asyncio.to_thread(operation))
        except BaseException:
            self._handle._core.release()
            raise
        task.add_done_callback(lambda _: self._handle._core.release())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # It cannot be stopped in the middle; who goes on with the session finds it free.
            await asyncio.wait({task})
            raise


# ── what is asked, with the checks of each argument ───────────────────────────────────────────


def putting(core: Core, path: str, data: bytes | str) -> Callable[[], None]:
    """What `put` does, once its arguments are checked."""
    names, content = _named(core, path), _content(data)
    if len(content) > int(core.limits.file_size):
        raise _error(EFBIG, path, f"the limit is {int(core.limits.file_size):,} bytes (file_size)")

    def put() -> None:
        _check_room(core, path, len(content))
        source, size = memfd(content)
        request = {"op": "put", "names": names, "token": secrets.token_hex(8)}
        try:
            _ask(core, path, request, _done, (source,), _PATIENCE + size / _SLOWEST)
        finally:
            os.close(source)
        if core.keeps:
            # It belongs to the state that the next cell may have to go back to.
            with _asked(core, "keep", {"cell": core.last_kept}, (), _PATIENCE) as init:
                try:
                    init.receive()
                except _NoAnswer:
                    raise SessionClosed(_NO_INIT) from None

    return put


def getting(core: Core, path: str, limit: int | str) -> Callable[[], bytes]:
    """What `get` does, once its arguments are checked."""
    names, most = _named(core, path), parse_size(limit, "limit")

    def read(message: control.Message, clerk: _Clerk, fd: int) -> bytes:
        return _read(path, fd, most)

    return lambda: _ask(core, path, {"op": "get", "names": names}, read)


def listing(core: Core, path: str, limit: int) -> Callable[[], Listing]:
    """What `list` does, once its arguments are checked."""
    names = parse(path, core.links.tier)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 0 < limit <= _MOST_ROWS:
        raise ValueError(f"limit must be from 1 to {_MOST_ROWS:,}")
    request = {"op": "list", "names": names, "limit": limit}
    return lambda: _ask(core, path, request, _rows, (), _PATIENCE + limit / _SLOWEST_ROWS)


def _named(core: Core, path: str) -> Sequence[str]:
    names = parse(path, core.links.tier)
    if not names:
        raise ValueError(f"path {path!r} names no file")
    return names


def _content(data: bytes | str) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"data cannot be written as UTF-8: {error}") from None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"data must be bytes or str, not {type(data).__name__}")


def _check_room(core: Core, path: str, size: int) -> None:
    """Where no mount bounds a session's files: whether there is room for `size` bytes more."""
    workspace, folder = int(core.limits.workspace), core.links.folder
    if not folder:
        return
    with suppress(FileNotFoundError):
        if folders.use(folder, workspace) + size > workspace:
            raise _error(ENOSPC, path, _detail(core, ENOSPC))


# ── what a clerk is asked, and says ───────────────────────────────────────────────────────────


class _NoAnswer(Exception):
    """The clerk ended before it answered."""


class _Clerk:
    """The host's end of a socket to who works on a session's files, for so many seconds in all."""

    def __init__(self, ours: socket.socket, patience: float) -> None:
        self._socket, self._patience = ours, patience
        self._until = time.monotonic() + patience

    def receive(self) -> tuple[control.Message, int]:
        """The next message, and the descriptor that came with it or -1."""
        # Zero would not wait at all, and say so in other words.
        self._socket.settimeout(max(self._until - time.monotonic(), 0.001))
        try:
            message, descriptors = control.receive_with_descriptors(self._socket)
        except TimeoutError:
            raise SandboxError(
                f"the session's files were not to be had within {self._patience:g} s"
            ) from None
        except ConnectionResetError:
            raise _NoAnswer from None
        if message is None:
            raise _NoAnswer
        return message, descriptors[0] if descriptors else -1


def _ask(
    core: Core,
    path: str,
    request: control.Message,
    take: Callable[[control.Message, _Clerk, int], _T],
    given: Sequence[int] = (),
    patience: float = _PATIENCE,
) -> _T:
    """What `take` makes of a clerk's answer: its message, what follows, the descriptor it sent."""
    for _ in range(_ATTEMPTS):
        with _asked(core, "files", request, given, patience) as clerk, suppress(_NoAnswer):
            message, fd = clerk.receive()
            try:
                if "errno" in message:
                    raise _error(message["errno"], path, _detail(core, message["errno"]))
                return take(message, clerk, fd)
            finally:
                if fd >= 0:
                    os.close(fd)
    raise SandboxError(f"{path}: processes of the session ended the one that works on its files")


@contextmanager
def _asked(
    core: Core, op: str, request: control.Message, given: Sequence[int], patience: float
) -> Iterator[_Clerk]:
    """The host's end of a socket whose other end init got for `op`, and which has `request` in it.

    By "files" a new clerk gets it, by "keep" init answers itself.
    """
    ours, theirs = control.pair()
    with ours:
        with theirs:
            control.send(ours, request, given)
            try:
                control.send(core.links.control, {"op": op}, (theirs.fileno(),))
            except BlockingIOError:
                message = "the session's init does not answer; close the session"
                raise SandboxError(message) from None
            except OSError as error:
                raise SessionClosed(_NO_INIT) from error
        yield _Clerk(ours, patience)


def _done(message: control.Message, clerk: _Clerk, fd: int) -> None:
    return None


def _read(path: str, fd: int, most: int) -> bytes:
    """The file that is open as `fd`, whatever is its name by now."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _error(EISDIR if stat.S_ISDIR(status.st_mode) else EINVAL, path)
    if status.st_size > most:
        raise _error(EFBIG, path, f"{status.st_size:,} bytes; the limit is {most:,}")
    with open(fd, "rb", closefd=False) as file:
        return file.read(status.st_size)


def _rows(message: control.Message, clerk: _Clerk, fd: int) -> Listing:
    rows: list[list[Any]] = []
    while "rows" in message:
        rows += message["rows"]
        message, _ = clerk.receive()
    if "errno" in message:
        raise OSError(message["errno"], os.strerror(message["errno"]))
    files = [File(path, size, kind, modified) for path, kind, size, modified in rows]
    return Listing(sorted(files, key=lambda file: file.path), complete=message["complete"])


def _detail(core: Core, errno: int) -> str:
    return f"the limit is {int(core.limits.workspace):,} bytes (workspace)" * (errno == ENOSPC)


def _error(errno: int, path: str, detail: str = "") -> OSError:
    words = _WORDS.get(errno) or os.strerror(errno)
    return OSError(errno, f"{words}; {detail}" if detail else words, path)
