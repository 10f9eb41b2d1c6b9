"""`session.files`: the host puts, reads, lists and packs files of a session's workspace.

Code of the session may rename every file meanwhile. So the host opens no path of the session:
init's file helper does, below the workspace, without following links and with the rights of the
session's code. The host gets a descriptor, checks that it is a regular file, and reads a bounded
number of bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, overload

from ..display import DisplayedByMethods
from ..types import Listing
from . import files as requests
from .files import WorkspaceFile, archiving, byte_limit, packing
from .local_files import MemoryFile, Source, Target

if TYPE_CHECKING:
    from .handle import SessionHandle


_T = TypeVar("_T")


class SessionFiles(DisplayedByMethods):
    """The files of a session's workspace; SessionBusy while a cell runs.

    Paths are relative to the workspace. Links are not followed, archives not unpacked: a cell can
    do that. All methods raise SessionClosed and SessionBusy as `Session.run`, TypeError and
    ValueError naming the argument, and OSError with the path: PermissionError where the session's
    own code has no permission either.
    """

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    def put(self, path: str, data: Source) -> None:
        """Write `data` to the file `path`; directories above it are made.

        `data` is bytes, text (written as UTF-8), the `pathlib.Path` of a local file, or a binary
        file object, which is read to its end. A regular file is replaced, atomically; nothing else
        is. If the space does not suffice, there is no file: OSError with ENOSPC
        (`Limits.workspace`) or EFBIG (`Limits.file_size`).
        """
        self._do(requests.putting(self._handle._core, path, data))

    def put_all(self, files: Mapping[str, bytes | str]) -> None:
        """As `put` for each of these files in order, but much faster than one by one.

        Errors of paths and sizes are raised before anything is written. After another error the
        files before the faulty one are there.
        """
        self._do(requests.putting_all(self._handle._core, files))

    @overload
    def get(self, path: str, *, to: None = None, limit: int | str | None = None) -> bytes: ...

    @overload
    def get(self, path: str, *, to: Target, limit: int | str | None = None) -> int: ...

    def get(
        self, path: str, *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """Return the content of the regular file `path`, as long as it was when it was opened.

        With `to`, the path of a local file or a binary file object, the content is written there
        piece by piece, and its length returned; a local file is replaced when it is complete.
        `limit` in bytes is 64 MiB by default, and with `to` it is `Limits.file_size`.

        OSError with EFBIG if the file is longer than `limit`, with EIO if it becomes shorter while
        it is read; FileNotFoundError, IsADirectoryError.
        """
        return self._do(requests.getting(self._handle._core, path, to, limit))

    def get_all(
        self, paths: Iterable[str], *, limit: int | str = "64MiB"
    ) -> dict[str, bytes | OSError]:
        """Return the contents of these regular files, much faster than one by one.

        A file that cannot be read, or would exceed `limit` bytes in all, is represented by its
        OSError.
        """
        return self._do(requests.getting_all(self._handle._core, paths, limit))

    def open(self, path: str) -> WorkspaceFile:
        """Open the regular file `path` to read, also while cells run; close it."""
        return self._do(requests.opening(self._handle._core, path))

    def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """List directory `path`, 64 levels deep, at most `limit` entries.

        Links are listed and not followed. Paths are relative to the workspace, and sorted.
        """
        return self._do(requests.listing(self._handle._core, path, limit))

    @overload
    def archive(
        self, path: str = "", *, to: None = None, limit: int | str | None = None
    ) -> bytes: ...

    @overload
    def archive(self, path: str = "", *, to: Target, limit: int | str | None = None) -> int: ...

    def archive(
        self, path: str = "", *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """Return directory `path` as a tar archive, whose members have the paths of `list`.

        The members are directories and regular files. Links and other entries are left out, as is
        a file that the session's code could not read either. With `to`, as of `get`, the archive is
        written there, and its length returned. `limit` of the bytes of all files is 64 MiB by
        default, and with `to` it is `Limits.workspace`.

        OSError with EFBIG if the files are larger, before anything is written; errors as of `list`
        and `get`.
        """
        return self._do(packing(self._handle._core, path, to, limit))

    def _do(self, operation: Callable[[], _T]) -> _T:
        core = self._handle._core
        try:
            for acquired in core.try_acquire:  # as in `Session.run`
                if not acquired:
                    break
                try:
                    self._handle._enter()
                    return operation()
                finally:
                    core.busy.release()
        finally:
            core.finish_end()
        raise self._handle._busy()


# `put_in_thread`: work in a thread that an event loop waits for and that cancellation does not
# stop.


def put_in_thread(work: Callable[[], _T]) -> asyncio.Future[_T]:
    """Start `work` in a thread of the running loop; the work is done even if the caller is
    cancelled.

    A task for `asyncio.to_thread` would not do: the loop cancels all remaining tasks when it ends;
    then a thread that has not begun never begins, and the task ends before a thread that has begun.
    """
    return asyncio.get_running_loop().run_in_executor(None, work)


# `AsyncSessionFiles`: `session.files` of an asynchronous session.


class AsyncSessionFiles(DisplayedByMethods):
    """`SessionFiles`, awaited. Files and file objects are read and written in a thread."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    async def put(self, path: str, data: Source | MemoryFile) -> None:
        """As `SessionFiles.put`."""
        await self._do(requests.putting(self._handle._core, path, data))

    async def put_all(self, files: Mapping[str, bytes | str]) -> None:
        """As `SessionFiles.put_all`."""
        await self._do(requests.putting_all(self._handle._core, files))

    @overload
    async def get(self, path: str, *, to: None = None, limit: int | str | None = None) -> bytes: ...

    @overload
    async def get(self, path: str, *, to: Target, limit: int | str | None = None) -> int: ...

    async def get(
        self, path: str, *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """As `SessionFiles.get`."""
        return await self._do(requests.getting(self._handle._core, path, to, limit))

    async def get_all(
        self, paths: Iterable[str], *, limit: int | str = "64MiB"
    ) -> dict[str, bytes | OSError]:
        """As `SessionFiles.get_all`."""
        return await self._do(requests.getting_all(self._handle._core, paths, limit))

    async def open(self, path: str) -> WorkspaceFile:
        """As `SessionFiles.open`. Reading it blocks."""
        return await self._do(requests.opening(self._handle._core, path))

    async def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """As `SessionFiles.list`."""
        return await self._do(requests.listing(self._handle._core, path, limit))

    @overload
    async def archive(
        self, path: str = "", *, to: None = None, limit: int | str | None = None
    ) -> bytes: ...

    @overload
    async def archive(
        self, path: str = "", *, to: Target, limit: int | str | None = None
    ) -> int: ...

    async def archive(
        self, path: str = "", *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """As `SessionFiles.archive`."""
        return await self._do(packing(self._handle._core, path, to, limit))

    async def archive_chunks(
        self, path: str = "", *, limit: int | str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the archive of `archive(path, to=…)` in pieces; use it with `contextlib.aclosing`.

        The session is busy until the iterator ends or is closed.
        """
        core = self._handle._core
        chunks = archiving(core, path, byte_limit(core, limit, streamed=True))
        self._acquire()
        try:
            while (chunk := await _finished(put_in_thread(lambda: next(chunks, None)))) is not None:
                yield chunk
        finally:
            chunks.close()
            core.release()

    def _acquire(self) -> None:
        self._handle._acquire()
        # The claim is taken before a thread begins, because a thread cannot be cancelled.
        self._handle._core.io.init.was_used = True

    async def _do(self, operation: Callable[[], _T]) -> _T:
        core = self._handle._core
        self._acquire()
        try:
            doing = put_in_thread(operation)
        except BaseException:
            core.release()
            raise
        doing.add_done_callback(lambda _: core.release())
        return await _finished(doing)


async def _finished(doing: asyncio.Future[_T]) -> _T:
    """Return the result of a thread, which is waited for even if the caller is cancelled."""
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        # The thread cannot be stopped in the middle; the next caller finds the session free.
        await asyncio.wait({doing})
        raise
