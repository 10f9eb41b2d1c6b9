"""The requests of `session.files`: checked, sent to the file helper, and read back."""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import tarfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from errno import EAGAIN, EFBIG, EINVAL, EIO, EISDIR, ELOOP, ENOSPC, ENOTDIR
from operator import attrgetter
from types import TracebackType
from typing import NamedTuple, TypeVar

from ..errors import SandboxError, SessionClosed, SessionDamaged
from ..init.files import DEEPEST, LONGEST_PATH
from ..jail import session_directory
from ..jail.mounts import WORKSPACE
from ..native.libc import seal
from ..protocol import control
from ..types import File, Listing, parse_size
from .core import Core, memfd
from .local_files import (
    MemoryFile,
    Source,
    Target,
    check_source,
    check_target,
    content_of,
    pieces,
    write,
)
from .recovery import CLOSED_AMID

# `FileClient`: the host's end of a file helper, a child of init for one operation on files.

_T = TypeVar("_T")

# Seconds for one attempt: code with the helper's uid may be able to stop and continue it, before
# Linux 6.12. A helper starts in milliseconds; a machine that swaps takes a thousand times that.
_TIMEOUT = 60.0
# The death of a worker ends a helper at work. No other worker can die before a cell runs, so the
# session's code must have killed the second helper, and would kill the third.
_ATTEMPTS = 2

# Errors for which the kernel's text says too little, or something else.
_WORDS = {
    EAGAIN: "Processes of the session are at their limit, or hold the file",
    EINVAL: "Not a regular file",
    ELOOP: "A symbolic link, which is not followed",
    ENOTDIR: "Not a directory (links are not followed)",
}


class _NoAnswer(Exception):
    """The helper ended before it answered."""


class FileClient:
    """The host's end of a helper's socket, with a limit in seconds for the whole conversation."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = sock, timeout
        self._until = time.monotonic() + timeout

    def renew(self) -> None:
        """Begin the time limit anew."""
        self._until = time.monotonic() + self._timeout

    def next(self, request: control.Message) -> tuple[control.Message, int]:
        """Return the answer to one more request."""
        try:
            control.send(self._socket, request)
        except (BrokenPipeError, ConnectionResetError):
            raise _NoAnswer from None
        return self.receive()

    def receive(self) -> tuple[control.Message, int]:
        """Return the next message, and the descriptor that came with it or -1."""
        # Zero would not wait at all, and raise another error.
        self._socket.settimeout(max(self._until - time.monotonic(), 0.001))
        try:
            message, descriptors = control.receive_with_descriptors(self._socket)
        except TimeoutError:
            raise SandboxError(
                f"the session's files were not available within {self._timeout:g} s"
            ) from None
        except ConnectionResetError:
            raise _NoAnswer from None
        if message is None:
            raise _NoAnswer
        return message, descriptors[0] if descriptors else -1


def ask(
    core: Core,
    paths: Sequence[str],
    request: control.Message,
    take: Callable[[control.Message, FileClient, int], _T],
    descriptors: Sequence[int] = (),
    extra_seconds: float = 0.0,
) -> _T:
    """Run a helper, and return what `take` makes of its answer: message, data, descriptor.

    `extra_seconds`: seconds more than for a small operation.

    Raises:
        OSError: the helper's error, with the path of `paths` at which it occurred.
        SandboxError, SessionClosed: the helper does not answer, or init is gone.
    """
    for _ in range(_ATTEMPTS):
        with (
            _request(core, "files", request, descriptors, _TIMEOUT + extra_seconds) as helper,
            suppress(_NoAnswer),
        ):
            message, fd = helper.receive()
            try:
                if "errno" in message:
                    raise refusal(core, message["errno"], paths[message.get("at", 0)])
                return take(message, helper, fd)
            finally:
                if fd >= 0:
                    os.close(fd)
    raise _ended(core, paths[0])


@contextmanager
def conversation(core: Core, path: str, request: control.Message) -> Iterator[FileClient]:
    """Run a helper for further requests, after its answer to the first.

    Raises:
        OSError, SandboxError, SessionClosed: as `ask`, also in the block.
    """
    with _request(core, "files", request, (), _TIMEOUT) as helper:
        try:
            message, _ = helper.receive()
            if "errno" in message:
                raise refusal(core, message["errno"], path)
            yield helper
        except _NoAnswer:
            raise _ended(core, path) from None


def _ended(core: Core, path: str) -> SandboxError:
    """The error for a helper that ended before it answered."""
    if core.io.closing:
        return _closed_error(core)
    return SessionDamaged(
        f"{path or '.'}: processes of the session ended the one that works on its files"
    )


@contextmanager
def _request(
    core: Core,
    op: str,
    request: control.Message,
    descriptors: Sequence[int],
    timeout: float,
) -> Iterator[FileClient]:
    """Return the host's end of a socket with `request` in it; init gets the other end for `op`.

    For "files" init starts a helper, "keep" it answers itself.
    """
    host_end, helper_end = control.pair()
    with host_end:
        with helper_end:
            control.send(host_end, request, descriptors)
            core.io.init.was_used = True
            try:
                control.send(core.links.control, {"op": op}, (helper_end.fileno(),))
            except BlockingIOError:
                message = "the session's init does not answer; close the session"
                raise SandboxError(message) from None
            except OSError as error:
                raise _closed_error(core) from error
        yield FileClient(host_end, timeout)


def request_keep(core: Core) -> None:
    """Have init keep the current files as those after the last cell.

    Raises:
        SandboxError, SessionClosed: init does not answer, or is gone.
    """
    with _request(core, "keep", {"cell": core.recovery.history.last}, (), _TIMEOUT) as init:
        try:
            init.receive()
        except _NoAnswer:
            raise _closed_error(core) from None


def _closed_error(core: Core) -> SessionClosed:
    """The error for an init that does not answer any more."""
    if core.io.closing:
        return SessionClosed(CLOSED_AMID)
    return SessionClosed("the session's init process is gone; open another session")


def refusal(core: Core, errno: int, path: str) -> OSError:
    """Return the error for `path`; where space is missing, it names the limit."""
    detail = f"the limit is {int(core.limits.workspace):,} bytes (workspace)"
    return error_of(errno, path, detail if errno == ENOSPC else "")


def error_of(errno: int, path: str, detail: str = "") -> OSError:
    """Return the error of this number, with an explanation."""
    words = _WORDS.get(errno) or os.strerror(errno)
    return OSError(errno, f"{words}; {detail}" if detail else words, path)


# Contents in memory, for the file helper to read.


def in_memory(data: Source | MemoryFile, path: str, limit: int) -> tuple[int, int]:
    """Return the descriptor of a file in memory with the content `data`, and the content's size.

    Raises:
        OSError: the content, of the file `path`, exceeds `limit` bytes, or cannot be read.
    """
    if isinstance(data, MemoryFile):
        _check_size(data.size, path, limit)
        return os.dup(data.fd), data.size
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        content = content_of(data, "data")
        _check_size(len(content), path, limit)
        return memfd(content)
    return _copied(pieces(data), path, limit)


def _copied(source: Iterable[bytes], path: str, limit: int) -> tuple[int, int]:
    fd, size = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), 0
    try:
        for piece in source:
            size += len(piece)
            _check_size(size, path, limit)
            _write_all(fd, piece)
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def _check_size(size: int, path: str, limit: int) -> None:
    if size > limit:
        raise error_of(EFBIG, path, f"the limit is {limit:,} bytes (file_size)")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# `WorkspaceFile`: an open file of a session's workspace, read by its descriptor.

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


# Parse the paths in a session's workspace that callers give.

_LONGEST_NAME = 255  # bytes: NAME_MAX of the kernel


def parse(path: str, tier: str = "jailed") -> list[str]:
    """Return the components of `path`, none for the workspace itself.

    `path` is relative to the workspace; in tier "jailed" "/workspace/..." is the same.

    Raises:
        TypeError, ValueError: naming `path` and its fault.
    """
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    _check_bytes(path)
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/"):
        if tier != "jailed" or names[:1] != [WORKSPACE.strip("/")]:
            raise ValueError(f"path {path!r} must be relative to the workspace")
        del names[0]
    if ".." in names:
        raise ValueError(f"path {path!r} must not lead upwards by '..'")
    # The last component is a file's, which cannot end in a slash.
    if len(names) > DEEPEST + 1:
        raise ValueError(f"path {path[:80]!r}... is over {DEEPEST} directories deep")
    return names


def _check_bytes(path: str) -> None:
    if "\0" in path:
        raise ValueError(f"path {path!r} has a null character in it")
    try:
        # The kernel's encoding, whatever this process's own is.
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"path {path!r} cannot be encoded: {error.reason}") from None
    if len(encoded) > LONGEST_PATH:
        raise ValueError(f"path is {len(encoded):,} bytes long; the limit is {LONGEST_PATH:,}")
    longest = max(map(len, encoded.split(b"/")))
    if longest > _LONGEST_NAME:
        raise ValueError(f"path has a name of {longest:,} bytes; the limit is {_LONGEST_NAME}")


# The requests of `session.files` to the file helper, after the checks of their arguments.
#
# Each function checks its arguments and returns the operation, which may run in another thread.

# Entries of one listing.
MAX_ROWS = 1_000_000
# Bytes that a caller holds in memory, unless it asks for more.
IN_MEMORY = 64 << 20
_SLOWEST = 4 << 20  # bytes per second that any disk achieves
_SLOWEST_ROWS = 10_000  # entries per second that any directory listing achieves
# Bounds of the files that one helper writes: bytes of their names, in one message, and bytes of
# their contents, in memory.
_MAX_TEXT, _MAX_BYTES = 48 << 10, 16 << 20


def putting(core: Core, path: str, data: Source | MemoryFile) -> Callable[[], None]:
    """The steps of `put`, after the checks of its arguments."""
    names = _named(core, path)
    check_source(data, "data")

    def put() -> None:
        source, size = in_memory(data, path, int(core.limits.file_size))
        try:
            new_files = [_NewFile(path, names, size)]
            _check_room(core, new_files)
            with _included_in_state(core):
                _send(core, new_files, source)
        finally:
            os.close(source)

    return put


def putting_all(core: Core, files: Mapping[str, bytes | str]) -> Callable[[], None]:
    """The steps of `put_all`, after the checks of its arguments."""
    limit = int(core.limits.file_size)
    new_files, contents = [], {}
    for path, content in contents_of(files):
        if len(content) > limit:
            raise error_of(EFBIG, path, f"the limit is {limit:,} bytes (file_size)")
        new_files.append(_NewFile(path, _named(core, path), len(content)))
        contents[path] = content

    def put() -> None:
        if not new_files:
            return
        _check_room(core, new_files)
        with _included_in_state(core):
            for batch in _batches(new_files):
                source, _ = memfd(b"".join(contents[each.path] for each in batch))
                try:
                    _send(core, batch, source)
                finally:
                    os.close(source)

    return put


@contextmanager
def _included_in_state(core: Core) -> Iterator[None]:
    """Have the files that the block writes belong to the state that recovery may restore."""
    try:
        yield
    finally:
        if core.recovery.has_snapshots:
            request_keep(core)


class _NewFile(NamedTuple):
    """A file to write into the workspace."""

    path: str
    names: Sequence[str]
    size: int


def _batches(new_files: Iterable[_NewFile]) -> Iterator[list[_NewFile]]:
    """Divide files among helpers: the names fit into one message, the contents into little
    memory.
    """
    batch: list[_NewFile] = []
    text = size = 0
    for new_file in new_files:
        row = len(json.dumps([new_file.names, new_file.size])) + 2
        if batch and (text + row > _MAX_TEXT or size + new_file.size > _MAX_BYTES):
            yield batch
            batch, text, size = [], 0, 0
        batch.append(new_file)
        text, size = text + row, size + new_file.size
    if batch:
        yield batch


def _send(core: Core, batch: Sequence[_NewFile], source: int) -> None:
    """Have a helper write the files of `batch`, which lie one behind the other in `source`."""
    request = {
        "op": "put",
        "files": [[each.names, each.size] for each in batch],
        "token": secrets.token_hex(8),
    }
    extra_seconds = sum(each.size for each in batch) / _SLOWEST + len(batch) / _SLOWEST_ROWS
    ask(core, [each.path for each in batch], request, _done, (source,), extra_seconds)


def opening(core: Core, path: str, limit: int | None = None) -> Callable[[], WorkspaceFile]:
    """The steps of `open`, and of `get`, after the checks of their arguments.

    The file has at most `limit` bytes, by default as many as the session may write.
    """
    names = _named(core, path)
    limit = int(core.limits.file_size) if limit is None else limit

    def opened(message: control.Message, helper: FileClient, fd: int) -> WorkspaceFile:
        return WorkspaceFile(path, os.dup(fd), limit)

    return lambda: ask(core, [path], {"op": "get", "names": names}, opened)


def getting(
    core: Core, path: str, to: Target | None, limit: int | str | None
) -> Callable[[], bytes | int]:
    """The steps of `get`, after the checks of its arguments."""
    default = IN_MEMORY if to is None else int(core.limits.file_size)
    opened = opening(core, path, default if limit is None else parse_size(limit, "limit"))
    check_target(to)

    def get() -> bytes | int:
        with opened() as file:
            return file.read() if to is None else write(file.chunks(), to)

    return get


def getting_all(
    core: Core, paths: Iterable[str], limit: int | str
) -> Callable[[], dict[str, bytes | OSError]]:
    """The steps of `get_all`, after the checks of its arguments."""
    if isinstance(paths, (str, bytes)):
        raise TypeError(f"paths must be a list of paths, not {type(paths).__name__}")
    named = [(path, _named(core, path)) for path in paths]
    max_bytes = parse_size(limit, "limit")

    def read(message: control.Message, helper: FileClient, fd: int) -> dict[str, bytes | OSError]:
        found: dict[str, bytes | OSError] = {}
        remaining = max_bytes
        for path, names in named:
            found[path] = content = _read_next(helper, path, names, remaining)
            remaining -= len(content) if isinstance(content, bytes) else 0
        return found

    def get() -> dict[str, bytes | OSError]:
        if not named:
            return {}
        extra_seconds = max_bytes / _SLOWEST + len(named) / _SLOWEST_ROWS
        return ask(core, [named[0][0]], {"op": "each"}, read, (), extra_seconds)

    return get


def listing(core: Core, path: str, limit: int) -> Callable[[], Listing]:
    """The steps of `list`, after the checks of its arguments."""
    names = parse(path, core.links.tier)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 0 < limit <= MAX_ROWS:
        raise ValueError(f"limit must be from 1 to {MAX_ROWS:,}")
    request = {"op": "list", "names": names, "limit": limit}
    return lambda: ask(core, [path], request, _rows, (), limit / _SLOWEST_ROWS)


def _named(core: Core, path: str) -> Sequence[str]:
    names = parse(path, core.links.tier)
    if not names:
        raise ValueError(f"path {path!r} names no file")
    return names


def contents_of(files: object) -> Sequence[tuple[str, bytes]]:
    """Return the paths and contents of `files`; raise TypeError or ValueError naming the fault."""
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a dict of paths, not {type(files).__name__}")
    return [(path, content_of(data, f"files: {path!r}")) for path, data in files.items()]


def _check_room(core: Core, new_files: Iterable[_NewFile]) -> None:
    """Check the limit of the workspace, where no mount enforces it."""
    workspace, folder = int(core.limits.workspace), core.links.folder
    if not folder:
        return
    with suppress(FileNotFoundError):
        used = session_directory.use(folder, workspace)
        for new_file in new_files:
            used += new_file.size
            if used > workspace:
                raise refusal(core, ENOSPC, new_file.path)


def _done(message: control.Message, helper: FileClient, fd: int) -> None:
    return None


def _read_next(helper: FileClient, path: str, names: Sequence[str], limit: int) -> bytes | OSError:
    message, fd = helper.next({"names": names})
    if "errno" in message:
        return error_of(message["errno"], path)
    try:
        with WorkspaceFile(path, fd, limit) as file:
            return file.read()
    except OSError as error:
        return error


def _rows(message: control.Message, helper: FileClient, fd: int) -> Listing:
    files: list[File] = []
    while "rows" in message:
        files += (
            File(path, size, kind, modified) for path, kind, size, modified in message["rows"]
        )
        message, _ = helper.receive()
    if "errno" in message:
        raise OSError(message["errno"], os.strerror(message["errno"]))
    files.sort(key=attrgetter("path"))
    return Listing(files, complete=message["complete"])


# A directory of a workspace as a tar archive, made on the host from descriptors, piece by piece.
#
# The archive holds directories and regular files alone, so that unpacking it makes no links,
# devices or privileged files. The host opens no path: the file helper opens each file, as for
# `get`.

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
