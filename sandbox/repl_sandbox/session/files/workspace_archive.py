"""A directory of a workspace as a tar archive, made on the host from descriptors, piece by piece.

The archive holds directories and regular files alone, so that unpacking it makes no links, devices
or privileged files. The host opens no path: the file helper opens each file, as for `get`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from errno import EFBIG

from ...session_limits import parse_size
from ...types import File
from ..core import Core
from .file_client import FileClient, conversation, error_of
from .file_requests import IN_MEMORY, MAX_ROWS, listing
from .local_files import Target, check_target, write
from .workspace_file import WorkspaceFile

# Contents up to this size are read before their header is written, so that the header is right
# whatever the code does meanwhile.
_SMALL = 1 << 20
_CHUNK = 1 << 18
_END = bytes(2 * tarfile.BLOCKSIZE)


def byte_limit(core: Core, limit: int | str | None, *, streamed: bool) -> int:
    """Return the bytes that an archive may hold, by the argument `limit` or its default."""
    if limit is not None:
        return parse_size(limit, "limit")
    return int(core.limits.workspace) if streamed else IN_MEMORY


def packing(
    core: Core, path: str, to: Target | None, limit: int | str | None
) -> Callable[[], bytes | int]:
    """The steps of `archive`, after the checks of its arguments."""
    check_target(to)
    chunks = archiving(core, path, byte_limit(core, limit, streamed=to is not None))

    def pack() -> bytes | int:
        with closing(chunks):
            return b"".join(chunks) if to is None else write(chunks, to)

    return pack


def archiving(core: Core, path: str, limit: int) -> Generator[bytes, None, None]:
    """Return the chunks of the archive, after the checks of the arguments.

    The session must be claimed until the iterator ends or is closed.

    Raises:
        OSError: as `list` raises; EFBIG, before the first chunk, if the files have more than
            `limit` bytes.
    """
    rows = listing(core, path, MAX_ROWS)

    def chunks() -> Iterator[bytes]:
        files = rows()
        total = sum(file.size for file in files)
        if total > limit:
            raise error_of(EFBIG, path or ".", f"{total:,} bytes; the limit is {limit:,}")
        with conversation(core, path, {"op": "each"}) as helper:
            remaining = limit
            for file in files:
                if file.kind == "directory":
                    yield _header(file, f"{file.path}/", 0, 0o755)
                elif file.kind == "file" and (opened := _opened(helper, file, remaining)):
                    with opened:
                        remaining -= opened.size
                        yield from _member(opened, file)
        yield _END

    return _joined(chunks())


def _opened(helper: FileClient, file: File, limit: int) -> WorkspaceFile | None:
    """Open a file; None if it is gone, or closed to the session's own code.

    Raises:
        OSError: it has grown since it was listed, beyond `limit` bytes.
    """
    helper.renew()
    message, fd = helper.next({"names": file.path.split("/")})
    return None if "errno" in message else WorkspaceFile(file.path, fd, limit)


def _member(opened: WorkspaceFile, file: File) -> Iterator[bytes]:
    """Yield a file's header, content and padding."""
    mode = 0o755 if opened.executable else 0o644
    if opened.size <= _SMALL:
        content = opened.read(shortened=True)
        yield _header(file, file.path, len(content), mode)
        yield content
        yield bytes(-len(content) % tarfile.BLOCKSIZE)
    else:
        yield _header(file, file.path, opened.size, mode)
        yield from opened.chunks()
        yield bytes(-opened.size % tarfile.BLOCKSIZE)


def _header(file: File, name: str, size: int, mode: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if file.kind == "directory" else tarfile.REGTYPE
    info.size, info.mode, info.mtime = size, mode, max(0, int(file.modified))
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _joined(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the same bytes in fewer chunks: a chunk costs its reader a switch of threads."""
    waiting, size = [], 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
