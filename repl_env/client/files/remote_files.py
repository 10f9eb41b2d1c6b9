"""`RemoteFiles`: the files of a session on a server, with the methods of `Session.files`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, overload

from repl_env.common.displayed import DisplayedByMethods
from repl_env.errors import NotSupported

if TYPE_CHECKING:
    from repl_env.client.files.file_transfer import FileTransfer
    from repl_env.client.session.session_client import SessionClient
    from repl_sandbox.session.files.local_files import Source, Target
    from repl_sandbox.types import Listing

T = TypeVar("T")


class RemoteFiles(DisplayedByMethods):
    """The files of the session's workspace, awaited; see `repl_sandbox.Session.files`.

    They are transferred over HTTP, beside the session's socket, while no other request runs.
    Arguments, results and errors are those of the local methods, and limits those of the server.
    An error of the connection is a `ServerError`; an upload may then be there or not, but never in
    part.
    """

    def __init__(self, session: SessionClient) -> None:
        self._session = session

    async def put(self, path: str, data: Source) -> None:
        """Write `data` to the file `path`: bytes, text, the Path of a local file, or a file object.

        Raises:
            TypeError, ValueError: naming the argument.
            OSError: with the path and the reason, as locally.
            NotReset: no episode has begun.
            ServerError: see `repl_env.errors`.
        """
        from repl_sandbox.session.files.local_files import check_source

        check_source(data, "data")
        await self._transfer(path, lambda transfer: transfer.put(path, data))

    @overload
    async def get(self, path: str, *, to: None = None, limit: int | str | None = None) -> bytes: ...

    @overload
    async def get(self, path: str, *, to: Target, limit: int | str | None = None) -> int: ...

    async def get(
        self, path: str, *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """Return the content of the file `path`, at most `limit` bytes (default 64 MiB).

        With `to`, a local path or a binary file object, write it there and return its length.
        Raises as `put`.
        """
        _check_target(to)
        return await self._transfer(path, lambda transfer: transfer.get(path, to, limit))

    async def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """List directory `path` and those below it, at most `limit` entries (up to 100,000).

        Raises as `put`.
        """
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be an int, not {type(limit).__name__}")
        return await self._transfer(path, lambda transfer: transfer.list(path, limit))

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
        """Return directory `path` as a tar archive; with `to`, write it there, as `get` does.

        `limit`: bytes of all its files; default 64 MiB, and with `to` the server's limit. Raises as
        `put`.
        """
        _check_target(to)
        return await self._transfer(path, lambda transfer: transfer.archive(path, to, limit))

    async def _transfer(self, path: str, work: Callable[[FileTransfer], T]) -> T:
        """Do `work` in a thread, while no request of the session runs."""
        from repl_env.client.files.file_transfer import FileTransfer

        if not isinstance(path, str):
            raise TypeError(f"path must be a str, not {type(path).__name__}")
        pipeline = self._session.require_pipeline()
        if pipeline.handshake is None:
            raise NotSupported("files: this server has no routes for the files of a session")
        async with pipeline.turn():
            transfer = FileTransfer(self._session.access, pipeline.handshake.token)
            try:
                return await asyncio.to_thread(work, transfer)
            finally:
                transfer.close()


def _check_target(to: object) -> None:
    from repl_sandbox.session.files.local_files import check_target

    check_target(to)
