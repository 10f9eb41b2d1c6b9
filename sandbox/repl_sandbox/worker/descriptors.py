"""The descriptors of a process and of its waiting copy.

A copy that held what its worker holds would be seen: the reader of a pipe would wait for a writer
that nobody knows of, a lock on a file would outlive its file. So a copy lets go of all of them.
When it takes over, it opens files again by their paths, where they were read or written last;
pipes, sockets and the like have another end, which lives on or is gone, and are lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
from collections.abc import Collection
from dataclasses import dataclass

_FOLDER = "/proc/self/fd"
_stat, _get_inheritable = os.stat, os.get_inheritable
_ONLY_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_BY_PATH = frozenset((stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR))
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


@dataclass(frozen=True, slots=True)
class Held:
    """One open descriptor. `kind` is its file's, as stat.S_IFMT; `path` "" if none leads there."""

    fd: int
    kind: int
    path: str
    flags: int
    offset: int
    inheritable: bool

    def let_go(self) -> None:
        """Close it, unless the file has no name any more: it is all that leads there."""
        if self.path or self.kind != stat.S_IFREG:
            self.close()

    def close(self) -> None:
        """Close it, if that has not been done yet."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def reopen(self, moved: tuple[str, str] | None = None) -> str:
        """Open it again, as it was; what to call it if that cannot be done, else "".

        `moved`: a directory whose files are opened in another one, and that one.
        """
        path = self.path
        if moved is not None and f"{path}/".startswith(f"{moved[0]}/"):
            path = moved[1] + path[len(moved[0]) :]
        if self.kind not in _BY_PATH:
            return f"descriptor {self.fd}, {_KINDS.get(self.kind, 'of the kernel')}"
        try:
            if path:
                fd = os.open(path, self.flags & ~_ONLY_ONCE | os.O_CLOEXEC)
                if fd != self.fd:
                    os.dup2(fd, self.fd, self.inheritable)
                    os.close(fd)
            if self.kind == stat.S_IFREG:
                os.lseek(self.fd, self.offset, os.SEEK_SET)
        except OSError as error:
            # It is read by people: a name of the code's choice may steer their terminal.
            name = self.path if self.path.isprintable() else repr(self.path)
            return f"descriptor {self.fd}, {name or 'a file'}: {error.strerror}"
        return ""


def held(besides: Collection[int]) -> list[Held]:
    """The open descriptors of this process, but for those of `besides`, which are distinct."""
    if _only(besides):
        return []
    numbers = _open_numbers().difference(besides)
    if not numbers:
        return []
    found = []
    for fd in sorted(numbers):
        with contextlib.suppress(OSError):  # closed by now: that of the listing itself
            found.append(_look(fd))
    return found


def _only(expected: Collection[int]) -> bool:
    """Whether these are open and no others; False also where that would take a look at each.

    Since Linux 6.2 the size of the directory is their count. To list it takes eight times as long.
    """
    try:
        if _stat(_FOLDER).st_size != len(expected):
            return False
        for fd in expected:
            _get_inheritable(fd)
    except OSError:
        return False
    return True


def _look(fd: int) -> Held:
    status = os.fstat(fd)
    kind = stat.S_IFMT(status.st_mode)
    path, offset = "", 0
    if kind in _BY_PATH and status.st_nlink:
        with contextlib.suppress(OSError):
            path = os.readlink(f"{_FOLDER}/{fd}")
    if kind == stat.S_IFREG:
        offset = os.lseek(fd, 0, os.SEEK_CUR)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    return Held(fd, kind, path, flags, offset, os.get_inheritable(fd))


def _open_numbers() -> set[int]:
    try:
        return set(map(int, os.listdir(_FOLDER)))
    except OSError:
        # Not to be read in tier "confined" by a process that took over, for the file rules are
        # about the directory of the first. poll(2) tells which numbers are not open.
        most = os.sysconf("SC_OPEN_MAX")
        poller = select.poll()
        for fd in range(most):
            poller.register(fd, 0)
        closed = {fd for fd, event in poller.poll(0) if event & select.POLLNVAL}
        return set(range(most)) - closed
