"""Files of a session's workspace for the host, beside code that changes them at any moment.

A file helper, which init forks for one operation, has the rights of the session's code.
"""

from __future__ import annotations

import _signal
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EINVAL, EIO, EISDIR, ELOOP
from typing import Any, NamedTuple, NoReturn

from ..jail import mounts, session_directory
from ..jail.recipe import RECIPES
from ..jail.steps import Jail, contain
from ..protocol import control

# Access to a session's workspace beside code that changes it at any moment.
#
# A path is a list of names without ".." and "/". Each is opened in the directory before it, by
# its descriptor and without following links (O_NOFOLLOW), which for such a path is equivalent to
# RESOLVE_BENEATH, NO_SYMLINKS and NO_MAGICLINKS of openat2(2), on every kernel. So whatever the
# code renames or replaces, and when, the opened file is below the workspace or was until it was
# moved. The kind of a file is checked on the open descriptor.

# The depth of directories: each takes a descriptor. The host refuses longer paths.
DEEPEST = 64
LONGEST_PATH = 4095  # bytes: PATH_MAX of the kernel without its end

PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: otherwise it waits for the other end of a FIFO, or for the holder of a lease.
PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20
_MAX_TEXT = 16 << 20  # of the paths of one listing

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def workspace_path(jail: Jail) -> str:
    """Return the path of a session's workspace."""
    own = f"{jail.folder}/{session_directory.WORKSPACE}" if jail.folder else mounts.WORKSPACE
    return jail.home or own


def temporary_path(jail: Jail) -> str:
    """Return the path of a session's directory for temporary files."""
    if not jail.home and not jail.folder:
        return mounts.TEMPORARY
    return f"{workspace_path(jail).rpartition('/')[0]}/{session_directory.TEMPORARY}"


def workspace_root(jail: Jail) -> int:
    """Open the workspace of a session."""
    if jail.home:
        return open_below(jail, workspace_path(jail))
    return own(jail.folder, session_directory.WORKSPACE) if jail.folder else place(mounts.WORKSPACE)


def open_below(jail: Jail, path: str) -> int:
    """Open the directory that has this path, which holds files of branches, or is above them.

    The code may have replaced those above it, up to the session's own, by links.
    """
    above = jail.folder or mounts.TEMPORARY
    opened = [place(above)]
    names = [name for name in path.removeprefix(above).split("/") if name]
    try:
        return os.dup(open_directory(opened[0], names, opened=opened))
    finally:
        for fd in opened:
            os.close(fd)


def place(path: str) -> int:
    """Open directory `path`, in which others can be opened."""
    return os.open(path, PLACE)


def own(folder: str, name: str) -> int:
    """Open directory `name` in the session's `folder`; made if the code has removed it."""
    fd = place(folder)
    return _enter(fd, name, [])


def open_file(root: int, names: Sequence[str]) -> int:
    """Open the regular file at `names` below `root`, to read."""
    opened: list[int] = []
    try:
        folder, name = open_directory(root, names[:-1], opened=opened), names[-1]
        # Check the name first, so that only a regular file is opened, unless it is replaced just
        # now.
        _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
        fd = os.open(name, os.O_RDONLY | PLAIN, dir_fd=folder)
    finally:
        for way in opened:
            os.close(way)
    try:
        _check_regular(os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


class FileContent(NamedTuple):
    """The content of a file to be made: `size` bytes of file `source` from `offset` on."""

    source: int
    offset: int
    size: int


def store(root: int, names: Sequence[str], content: FileContent, token: str) -> None:
    """Make `content` the regular file at `names`, atomically.

    It is written in the same directory, under a name made of `token`, and renamed. It keeps the
    permissions of a file that it replaces; other links to that file keep the old content.
    """
    created: list[tuple[int, str]] = []
    opened: list[int] = []
    try:
        folder, name = open_directory(root, names[:-1], created, opened), names[-1]
        part = f".{token}.part"
        try:
            _copy(content, folder, part, _replaced(folder, name))
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
    except OSError:
        for parent, new in reversed(created):
            with suppress(OSError):
                os.rmdir(new, dir_fd=parent)
        raise
    finally:
        for fd in opened:
            os.close(fd)


def open_directory(
    root: int,
    names: Sequence[str],
    created: list[tuple[int, str]] | None = None,
    opened: list[int] | None = None,
) -> int:
    """Open the directory `names` below `root`.

    With a list `created`, missing directories are made, and noted in it. `opened` receives the
    descriptors of those on the way and of the last, for the caller to continue after it.
    """
    fd = root
    for name in names:
        fd = os.open(name, PLACE, dir_fd=fd) if created is None else _enter(fd, name, created)
        if opened is not None:
            opened.append(fd)
    return fd


def _enter(parent: int, name: str, created: list[tuple[int, str]]) -> int:
    try:
        return os.open(name, PLACE, dir_fd=parent)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
            created.append((parent, name))
        return os.open(name, PLACE, dir_fd=parent)


def _check_regular(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        errno = {stat.S_IFDIR: EISDIR, stat.S_IFLNK: ELOOP}.get(kind, EINVAL)
        raise OSError(errno, os.strerror(errno))


def _replaced(folder: int, name: str) -> int | None:
    """The permissions of the regular file `name`, None if there is nothing of that name."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular(status)
    return stat.S_IMODE(status.st_mode) & 0o777


def _copy(content: FileContent, folder: int, name: str, mode: int | None) -> None:
    with suppress(FileNotFoundError):
        # left by a helper that was killed, when this one repeats the request
        os.unlink(name, dir_fd=folder)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, 0o666, dir_fd=folder)
    if mode is not None:
        os.fchmod(fd, mode)
    try:
        offset, end = content.offset, content.offset + content.size
        while piece := os.pread(content.source, min(_PIECE, end - offset), offset):
            offset += len(piece)
            while piece:
                piece = piece[os.write(fd, piece) :]
    finally:
        os.close(fd)


class DirectoryListing:
    """The entries below directory `names`, at most `limit` rows; then `complete` tells whether
    these are all.

    The entries of a directory follow after those beside it.
    """

    def __init__(self, root: int, names: Sequence[str], limit: int) -> None:
        self.complete = True
        self._remaining = limit
        self._text = _MAX_TEXT
        self._top = _listable(".", open_directory(root, names))
        self._names = list(names)

    def rows(self) -> Iterator[list[Any]]:
        """Yield [path, kind, bytes, seconds since 1970] of each entry, the path from the root."""
        return self._below(self._top, "".join(f"{name}/" for name in self._names), DEEPEST)

    def _below(self, fd: int, above: str, deeper: int) -> Iterator[list[Any]]:
        within: list[str] = []
        for entry in self._entries(fd):
            row = self._row(entry, above + entry.name)
            if row is None:
                continue
            if not self._remaining:
                self.complete = False
                return
            self._remaining -= 1
            yield row
            if row[1] == "directory":
                within.append(entry.name)
        for name in within:
            yield from self._inside(fd, name, above, deeper - 1)
        os.close(fd)

    def _inside(self, fd: int, name: str, above: str, deeper: int) -> Iterator[list[Any]]:
        try:
            inner = _listable(name, fd)
        except OSError:  # closed by its owner, gone, or something else by now
            self.complete = False
            return
        if deeper:
            yield from self._below(inner, f"{above}{name}/", deeper)
            return
        if next(self._entries(inner), None) is not None:
            self.complete = False
        os.close(inner)

    def _entries(self, fd: int) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(fd) as entries:
                yield from entries
        except OSError:  # it was removed meanwhile
            self.complete = False

    def _row(self, entry: os.DirEntry[str], path: str) -> list[Any] | None:
        length = len(os.fsencode(path))
        if length > LONGEST_PATH or length > self._text:
            self.complete = False
            return None
        self._text -= length
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "other")
        return [path, kind, status.st_size if kind == "file" else 0, status.st_mtime]


def _listable(name: str, folder: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | PLAIN, dir_fd=folder)


# The file helper: a process that init forks for one operation of the host on the session's files.
#
# It has its own socket to the host, reads one request from it and answers. It runs init's code,
# with the rights of the session's code to files and no others, and ends after the answer.

# Bytes of rows in one message: with the longest path after that, still below the message limit.
_BATCH = 1 << 15


def run_file_helper(jail: Jail, fd: int) -> NoReturn:
    """Serve one request, which arrives on socket `fd`."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        jail.descriptors = {0, 1, 2, fd}
        contain(jail, RECIPES[jail.tier].file_helper)
        host = socket.socket(fileno=fd)
        request, descriptors = control.receive_with_descriptors(host)
        if request is not None:
            _serve(host, jail, request, descriptors)
    # Boundary: this process can report its errors only here, and must not return into init's code.
    except Exception as error:  # noqa: BLE001
        os.write(2, f"the session's file helper failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def refuse(fd: int, error: OSError) -> None:
    """Answer the host on socket `fd`, which is closed, that no helper can start."""
    with socket.socket(fileno=fd) as host:
        # unix(7): closing a socket with unread data resets the other end, including the answer.
        host.recv(1)
        control.send(host, {"errno": error.errno})


def _serve(
    host: socket.socket, jail: Jail, request: control.Message, descriptors: list[int]
) -> None:
    at = 0  # of several files, the current one
    try:
        root = workspace_root(jail)
        if request["op"] == "get":
            control.send(host, {}, (open_file(root, request["names"]),))
        elif request["op"] == "each":
            _open_each(host, root)
        elif request["op"] == "put":
            offset = 0
            for names, size in request["files"]:
                content = FileContent(descriptors[0], offset, size)
                store(root, names, content, request["token"])
                offset, at = offset + size, at + 1
            control.send(host, {})
        else:
            _list(host, DirectoryListing(root, request["names"], request["limit"]))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the caller has left
    except OSError as error:
        control.send(host, {"errno": error.errno or EIO, "at": at})


def _open_each(host: socket.socket, root: int) -> None:
    """Open files at the host's requests, one after the other."""
    answer: control.Message = {}
    opened: tuple[int, ...] = ()
    while True:
        control.send(host, answer, opened)
        for fd in opened:
            os.close(fd)
        request, _ = control.receive_with_descriptors(host)
        if request is None:
            return
        try:
            answer, opened = {}, (open_file(root, request["names"]),)
        except OSError as error:
            answer, opened = {"errno": error.errno or EIO}, ()


def _list(host: socket.socket, listing: DirectoryListing) -> None:
    for rows in _batches(listing.rows()):
        control.send(host, {"rows": rows})
    control.send(host, {"complete": listing.complete})


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    batch: list[list[Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(os.fsencode(row[0])) * 6 + 80  # as JSON no byte takes more
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
