"""The files of a session on a server: transfers, each on its own connection, for both fronts."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from errno import EFBIG
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import quote, urlencode

from repl_env.client import protocol
from repl_env.client.address import pause
from repl_env.client.uploads import HttpConnection, HttpStream
from repl_env.common.display import DisplayedByMethods
from repl_env.errors import BadReply, NotSupported, ServerError, ServerUnavailable
from repl_sandbox.session import local_files
from repl_sandbox.types import File, Listing, parse_size

if TYPE_CHECKING:
    from repl_env.client.address import ServerAccess
    from repl_env.client.session import SessionClient
    from repl_sandbox.session.local_files import Source, Target


# Blocking transfers of the files of one session on a server, each on its own connection.

# Seconds without a byte: the session may be busy with another client's step.
SILENCE_S = 120.0
# Consecutive attempts at the rest of a file without a byte.
MAX_ATTEMPTS = 6
_PARTIAL = 206
# Bytes that a caller holds in memory, unless it asks for more.
_IN_MEMORY = 64 << 20
# Bytes of a listing: a server sends no more entries than a hundred thousand.
_MAX_LISTED = 256 << 20
_KINDS = frozenset({"file", "directory", "symlink", "other"})


class FileTransfer:
    """One transfer with the session that `token` names; `close` ends it from another thread."""

    def __init__(self, access: ServerAccess, token: str) -> None:
        self._access, self._token = access, token
        self._connection = HttpConnection(access, SILENCE_S)
        self._closed = False

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

    def put(self, path: str, data: local_files.Source) -> None:
        """Send `data` as the file `path`."""
        body = _Body(data)
        try:
            with self._stream("PUT", _file_url(path), path, body, body.headers) as answer:
                for _ in answer.chunks():
                    pass
        except ServerUnavailable:
            if body.failure is not None:
                raise body.failure from None
            raise

    def get(self, path: str, to: local_files.Target | None, limit: int | str | None) -> bytes | int:
        """Return the file `path`, or write it to `to`."""
        max_bytes = math.inf if limit is None else parse_size(limit, "limit")
        max_bytes = min(max_bytes, _IN_MEMORY) if limit is None and to is None else max_bytes
        return _collect(self._content(path, max_bytes), to)

    def _content(self, path: str, max_bytes: float) -> Iterator[bytes]:
        """Yield a file. After a break the rest is requested, of the same version of the file."""
        received = attempts = 0
        size: int | None = None
        version: str | None = None
        while size is None or received < size:
            rest = {"Range": f"bytes={received}-", "If-Range": version} if version else None
            try:
                with self._stream("GET", _file_url(path), path, headers=rest) as answer:
                    if size is not None and answer.status != _PARTIAL:
                        raise ServerError("the file has changed while it was read", code="CHANGED")
                    if size is None:
                        size, version = _size(answer, path, max_bytes), answer.headers.get("etag")
                    for chunk in _at_most(answer.chunks(), size - received):
                        received, attempts = received + len(chunk), 0
                        yield chunk
            except ServerUnavailable:
                attempts += 1
                if version is None or attempts == MAX_ATTEMPTS or self._closed:
                    raise
                time.sleep(pause(attempts))

    def list(self, path: str, limit: int) -> Listing:
        """Return the entries below the directory `path`."""
        url = f"/files?{_query(path=path, limit=str(limit))}"
        with self._stream("GET", url, path) as answer:
            return _listing(b"".join(_at_most(answer.chunks(), _MAX_LISTED)))

    def archive(
        self, path: str, to: local_files.Target | None, limit: int | str | None
    ) -> bytes | int:
        """Return the directory `path` as a tar archive, or write it to `to`."""
        max_bytes = None if limit is None else parse_size(limit, "limit")
        if to is None and max_bytes is None:
            max_bytes = _IN_MEMORY
        query = _query(path=path) if max_bytes is None else _query(path=path, limit=str(max_bytes))
        with self._stream("GET", f"/archive?{query}", path or ".") as answer:
            chunks = answer.chunks()
            # Headers and padding of many small files may take more than the files.
            return _collect(
                chunks if max_bytes is None else _at_most(chunks, 4 * max_bytes + _IN_MEMORY), to
            )

    def _stream(
        self,
        method: str,
        url: str,
        path: str,
        body: Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Checked:
        named = {"X-Session-Id": self._token, **(headers or {})}
        opening = self._connection.stream(method, url, body, named)
        return _Checked(opening, self._access, path, ranged="Range" in named)


class _Checked:
    """A response in a `with` block; its error if it has another status than was asked for."""

    def __init__(self, opening: Any, access: ServerAccess, path: str, *, ranged: bool) -> None:
        self._opening, self._access, self._path = opening, access, path
        self._ranged = ranged

    def __enter__(self) -> HttpStream:
        answer: HttpStream = self._opening.__enter__()
        if answer.status in (200, 201) or (answer.status == _PARTIAL and self._ranged):
            return answer
        try:
            raise protocol.error_of_file(
                answer.status, answer.headers, answer.text(), self._access.secrets, self._path
            )
        finally:
            self._opening.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        self._opening.__exit__(*error)


class _Body:
    """The content of a file as the body of a request. `failure`: the error of reading it."""

    def __init__(self, data: local_files.Source) -> None:
        self._data = local_files.content_of(data, "data") if isinstance(data, str) else data
        self.failure: Exception | None = None
        self.headers: Mapping[str, str] = {}
        if isinstance(self._data, (bytes, bytearray, memoryview)):
            self.headers = {"Content-Length": str(memoryview(self._data).nbytes)}

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from local_files.pieces(self._data)
        # Boundary: an error of the caller's file is not one of the server, and raised unchanged.
        except Exception as error:  # noqa: BLE001
            self.failure = error
            raise ValueError("the content cannot be read") from None


def _size(answer: HttpStream, path: str, max_bytes: float) -> int:
    """Return the length of a file before it is read; OSError if that exceeds `max_bytes`."""
    if answer.size is None:
        raise BadReply("the server does not say how long the file is")
    if answer.size > max_bytes:
        sizes = f"{answer.size:,} bytes; the limit is {max_bytes:,}"
        raise OSError(EFBIG, f"{os.strerror(EFBIG)}; {sizes}", path)
    return answer.size


def _collect(chunks: Iterator[bytes], to: local_files.Target | None) -> bytes | int:
    return b"".join(chunks) if to is None else local_files.write(chunks, to)


def _at_most(chunks: Iterator[bytes], bytes_left: int) -> Iterator[bytes]:
    for chunk in chunks:
        bytes_left -= len(chunk)
        if bytes_left < 0:
            raise BadReply("the server sends more than was asked for")
        yield chunk


def _listing(body: bytes) -> Listing:
    try:
        decoded = json.loads(body)
        files = [_file(row) for row in decoded["files"]]
        return Listing(files, complete=decoded["complete"] is True)
    except (ValueError, RecursionError, KeyError, TypeError):
        raise BadReply("the server's listing is invalid") from None


def _file(row: Any) -> File:
    path, size, kind, modified = (row[name] for name in ("path", "size", "kind", "modified"))
    is_valid = (
        isinstance(path, str) and isinstance(size, int) and isinstance(modified, (int, float))
    )
    if not is_valid or kind not in _KINDS:
        raise ValueError
    return File(path, size, kind, float(modified))


def _file_url(path: str) -> str:
    # Slashes at the begin would be joined by proxies; other parts are sent as they are.
    named = path.lstrip("/")
    begin = "%2F" * (len(path) - len(named))
    return f"/files/{begin}{quote(os.fsencode(named))}"


def _query(**parameters: str) -> str:
    return urlencode({name: os.fsencode(value) for name, value in parameters.items()})


# `RemoteFiles`: the files of a session on a server, with the methods of `Session.files`.

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
        from repl_sandbox.session.local_files import check_source

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
    from repl_sandbox.session.local_files import check_target

    check_target(to)


# `SyncRemoteFiles`: `RemoteFiles` for blocking code.


class SyncRemoteFiles(DisplayedByMethods):
    """The methods of `RemoteFiles`, blocking."""

    def __init__(self, files: RemoteFiles, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._files, self._wait = files, wait

    def put(self, path: str, data: Source) -> None:
        """Write `data` to the file `path`; see `RemoteFiles.put`."""
        self._wait(self._files.put(path, data))

    @overload
    def get(self, path: str, *, to: None = None, limit: int | str | None = None) -> bytes: ...

    @overload
    def get(self, path: str, *, to: Target, limit: int | str | None = None) -> int: ...

    def get(
        self, path: str, *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """Return the file `path`, or write it to `to`; see `RemoteFiles.get`."""
        found: bytes | int = self._wait(self._files.get(path, to=to, limit=limit))
        return found

    def list(self, path: str = "", *, limit: int = 10_000) -> Listing:
        """List directory `path`; see `RemoteFiles.list`."""
        found: Listing = self._wait(self._files.list(path, limit=limit))
        return found

    @overload
    def archive(
        self, path: str = "", *, to: None = None, limit: int | str | None = None
    ) -> bytes: ...

    @overload
    def archive(self, path: str = "", *, to: Target, limit: int | str | None = None) -> int: ...

    def archive(
        self, path: str = "", *, to: Target | None = None, limit: int | str | None = None
    ) -> bytes | int:
        """Return directory `path` as a tar archive, or write it to `to`; see `RemoteFiles`."""
        found: bytes | int = self._wait(self._files.archive(path, to=to, limit=limit))
        return found
