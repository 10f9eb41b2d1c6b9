"""`WorkspaceFile`: an open file of a session's workspace, read by its descriptor."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from errno import EFBIG, EINVAL, EIO, EISDIR
from types import TracebackType

from .file_client import error_of

_PIECE = 1 << 20


class WorkspaceFile:
    """A regular file, open to read; a context manager.

    Any thread may read, also while a cell runs or after the session has ended. The file may then
    grow, which does not show, or become shorter, which is an error.

    Attributes:
        path: The path in the workspace by which the file was opened.
        size: The number of bytes when it was opened.
        modified: Seconds since 1970 when it was opened.
        version: A text that differs if the file was replaced, or changed by ordinary means.
        executable: True if its owner may execute it.
    """

    def __init__(self, path: str, fd: int, limit: int) -> None:
        """Take over the descriptor `fd`, which is closed after an error."""
        self._file = open(fd, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise error_of(EISDIR if stat.S_ISDIR(status.st_mode) else EINVAL, path)
            if status.st_size > limit:
                raise error_of(EFBIG, path, f"{status.st_size:,} bytes; the limit is {limit:,}")
        except OSError:
            self._file.close()
            raise
        self.path, self.size, self.modified = path, status.st_size, status.st_mtime
        self.executable = bool(status.st_mode & stat.S_IXUSR)
        self.version = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    def read(self, offset: int = 0, count: int | None = None, *, shortened: bool = False) -> bytes:
        """Return `count` bytes from `offset` on, or those up to `size`.

        Raises:
            OSError: the file became shorter, unless that is `shortened`; or the disk failed.
        """
        remaining = self.size - offset if count is None else count
        pieces = []
        while remaining > 0:
            piece = os.pread(self._file.fileno(), remaining, offset)
            if not piece and not shortened:
                raise OSError(EIO, "The file became shorter while it was read", self.path)
            if not piece:
                break
            pieces.append(piece)
            remaining, offset = remaining - len(piece), offset + len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in pieces of a mebibyte."""
        for offset in range(0, self.size, _PIECE):
            yield self.read(offset, min(_PIECE, self.size - offset))

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def __enter__(self) -> WorkspaceFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
