"""`KeyFile`: the keys of a file that may change while the server runs; the keys of a server."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..tenants.tenant import Tenant
from .api_keys import APIKeys

if TYPE_CHECKING:
    from ..settings import Settings

logger = logging.getLogger("repl_server")

_Version: TypeAlias = tuple[int, int, int, int]


class KeyFile(APIKeys):
    """The keys of a file, read again when the file changed, and further keys that stay.

    A file that cannot be read, or has an invalid line, leaves the keys as they were, with a line in
    the log.

    Raises:
        ValueError, OSError: as `APIKeys.read`.
    """

    __slots__ = ("_further", "_path", "_version")

    def __init__(self, path: Path, further: APIKeys) -> None:
        self._path, self._further = path, further
        self._version = _version(path)
        super().__init__((APIKeys.read(path) | further)._hashes)

    def __contains__(self, name: object) -> bool:
        self._refresh()
        return super().__contains__(name)

    def __len__(self) -> int:
        self._refresh()
        return super().__len__()

    def tenant(self, presented: str) -> Tenant | None:
        """The tenant of the key `presented`; None for an unknown key. Takes constant time."""
        self._refresh()
        return super().tenant(presented)

    def _refresh(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._hashes = (APIKeys.read(self._path) | self._further)._hashes
        except (OSError, ValueError) as error:
            logger.warning("the key file cannot be read again, and its keys stay: %s", error)
        else:
            logger.info("the key file was read again: %d keys", len(self._hashes))


def configured_keys(settings: Settings) -> APIKeys:
    """Return the keys of a server: of its key file, as long as it runs, and of the environment.

    Raises:
        ValueError, OSError: as `APIKeys.read` and `APIKeys.parse`.
    """
    further = APIKeys.parse(settings.hashed_keys)
    if settings.api_keys is None:
        return further
    try:
        return KeyFile(settings.api_keys, further)
    except ValueError as error:
        raise ValueError(f"api_keys: {error}") from None


def _version(path: Path) -> _Version:
    """A value that differs between two states of the file; one value for all missing files."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
