"""`SyncRemoteFiles`: `RemoteFiles` for blocking code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, overload

from repl_env.common.displayed import DisplayedByMethods

if TYPE_CHECKING:
    from repl_env.client.files.remote_files import RemoteFiles
    from repl_sandbox.session.files.local_files import Source, Target
    from repl_sandbox.types import Listing


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
