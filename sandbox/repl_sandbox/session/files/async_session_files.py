"""`AsyncSessionFiles`: `session.files` of an asynchronous session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, overload

from ...displayed import DisplayedByMethods
from ...types import Listing
from ..thread_offload import put_in_thread
from . import file_requests as requests
from .local_files import MemoryFile, Source, Target
from .workspace_archive import archiving, byte_limit, packing
from .workspace_file import WorkspaceFile

if TYPE_CHECKING:
    from ..drivers.session_handle import SessionHandle

_T = TypeVar("_T")


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
