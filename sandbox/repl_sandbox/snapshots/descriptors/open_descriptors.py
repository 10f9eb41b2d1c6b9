"""The descriptors of a process and of its waiting snapshot.

Open descriptors of a snapshot would have effects: the reader of a pipe would wait for a hidden
writer, a lock on a file would outlive its file. So a snapshot closes all descriptors of
its worker. When it takes over, it opens files again by their paths, at their last positions; pipes,
sockets and the like have another end, which lives on or is gone, and are lost. A placeholder keeps
their numbers (see `placeholder_descriptors`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_FOLDER = "/proc/self/fd"
# Taken once: code may replace those of the modules, and would lose its state.
_stat, _fstat, _lseek, _readlink = os.stat, os.fstat, os.lseek, os.readlink
_open, _close, _dup2, _get_inheritable = os.open, os.close, os.dup2, os.get_inheritable
_listdir, _sysconf, _fcntl = os.listdir, os.sysconf, fcntl.fcntl
_ONLY_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_TMPFILE
_BY_PATH = frozenset((stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR))
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a terminal"}
_STREAMS = (0, 1, 2)
# Major numbers of terminals (admin-guide/devices.txt), which have another end, too.
_TERMINALS = frozenset((4, 5, *range(136, 144)))

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RestoredDirectory:
    """The directory whose files are restored with a session's state: a path in it stays valid.

    `old_workspace`: the directory of the same files in the session that a branch was made of; ""
    for a session that is no branch.
    """

    workspace: str
    old_workspace: str = ""

    def find(self, path: str) -> tuple[str, bool]:
        """Return the present path of the file `path`, and whether that file was restored."""
        if self.old_workspace and f"{path}/".startswith(f"{self.old_workspace}/"):
            path = self.workspace + path[len(self.old_workspace) :]
        return path, f"{path}/".startswith(f"{self.workspace}/")


@dataclass(frozen=True, slots=True)
class OpenDescriptor:
    """One open descriptor.

    `kind` is its file's, as stat.S_IFMT; `path` "" if none leads there; `file` its device and
    inode. `stream`: the standard stream that it is a duplicate of, -1 for none. `reopens`: whether
    a snapshot can open it again.
    """

    fd: int
    kind: int
    path: str
    flags: int
    offset: int
    inheritable: bool
    file: Identity
    stream: int
    reopens: bool

    def release(self) -> None:
        """Close it, unless the snapshot keeps it, because nothing else leads to a file without a
        name.

        Likewise where the kernel does not report the name.
        """
        if self.path or not self.reopens or self.stream >= 0:
            self.close()

    def close(self) -> None:
        """Close the descriptor, unless it is closed already."""
        with contextlib.suppress(OSError):
            _close(self.fd)

    @property
    def name(self) -> str:
        """The name of a descriptor that is lost because of its kind."""
        return f"descriptor {self.fd}, {_KINDS.get(self.kind, 'of the kernel')}"

    def reopen(self, directory: RestoredDirectory) -> str:
        """Open one that `reopens` again, as it was; return its name if that fails, else ""."""
        try:
            if self.stream >= 0:
                _dup2(self.stream, self.fd, self.inheritable)
            elif self.path:
                self._open(*directory.find(self.path))
            if self.kind == stat.S_IFREG and not self.flags & os.O_PATH:
                _lseek(self.fd, self.offset, os.SEEK_SET)
        except OSError as error:
            # People read it: a name that the code chose may contain terminal control sequences.
            name = self.path if self.path.isprintable() else repr(self.path)
            return f"descriptor {self.fd}, {name or 'a file'}: {error.strerror}"
        return ""

    def _open(self, path: str, restored: bool) -> None:
        fd = _open(path, self.flags & ~_ONLY_ONCE | os.O_CLOEXEC)
        try:
            if not restored and _identity(_fstat(fd)) != self.file:
                raise OSError(errno.ESTALE, "another file has that name")
            if fd != self.fd:
                _dup2(fd, self.fd, self.inheritable)
        finally:
            if fd != self.fd:
                _close(fd)


def find_open(excluded: Collection[int]) -> list[OpenDescriptor]:
    """The open descriptors of this process, except those of `excluded`, which are distinct."""
    if _are_all_open(excluded):
        return []
    numbers = _open_numbers().difference(excluded)
    if not numbers:
        return []
    found, streams = [], _stream_identities()
    for fd in sorted(numbers):
        with contextlib.suppress(OSError):  # closed by now: the descriptor of the listing itself
            found.append(_inspect(fd, streams))
    return found


def _are_all_open(expected: Collection[int]) -> bool:
    """Return whether these and no others are open; False also where that would need a look at each.

    Since Linux 6.2 the size of the directory is their number. Listing it takes eight times as long.
    """
    try:
        if _stat(_FOLDER).st_size != len(expected):
            return False
        for fd in expected:
            _get_inheritable(fd)
    except OSError:
        return False
    return True


def _inspect(fd: int, streams: Sequence[Identity]) -> OpenDescriptor:
    status = _fstat(fd)
    kind, file = stat.S_IFMT(status.st_mode), _identity(status)
    flags = _fcntl(fd, fcntl.F_GETFL)
    path, offset = "", 0
    stream = streams.index(file) if kind == stat.S_IFIFO and file in streams else -1
    terminal = kind == stat.S_IFCHR and os.major(status.st_rdev) in _TERMINALS
    reopens = stream >= 0 or (kind in _BY_PATH and not terminal)
    if reopens and status.st_nlink and stream < 0:
        with contextlib.suppress(OSError):
            path = _readlink(f"{_FOLDER}/{fd}")
    if kind == stat.S_IFREG and not flags & os.O_PATH:
        offset = _lseek(fd, 0, os.SEEK_CUR)
    return OpenDescriptor(
        fd, kind, path, flags, offset, _get_inheritable(fd), file, stream, reopens
    )


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _stream_identities() -> list[Identity]:
    """The identities of the files of the standard streams; none of a closed one."""
    found: list[Identity] = []
    for fd in _STREAMS:
        try:
            found.append(_identity(_fstat(fd)))
        except OSError:
            found.append((-1, -1))
    return found


def _open_numbers() -> set[int]:
    try:
        return set(map(int, _listdir(_FOLDER)))
    except OSError:
        # Unreadable in tier "confined" for a process that took over, because the Landlock rules
        # name the directory of the first worker. poll(2) reports the numbers that are not open.
        limit = _sysconf("SC_OPEN_MAX")
        poller = select.poll()
        for fd in range(limit):
            poller.register(fd, 0)
        closed = {fd for fd, event in poller.poll(0) if event & select.POLLNVAL}
        return set(range(limit)) - closed
