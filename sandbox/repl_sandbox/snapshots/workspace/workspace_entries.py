"""`WorkspaceEntry`: notes and restores a path below a directory that others change meanwhile.

Each component is opened in the directory before it, as in `workspace_files`, and closed again: the
process lives as long as the session.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from . import workspace_files
from .file_changes import unsettled

_FIELDS = 5  # before the part of a key that distinguishes changes within a tick


class WorkspaceEntry(NamedTuple):
    """The entry at a path. `key` identifies its state; `data` is None where it is not kept."""

    mode: int
    key: tuple[int, ...]
    modified: int  # nanoseconds
    data: bytes | None

    @property
    def inode(self) -> int:
        """The inode of a regular file, which its other names share; of anything else 0."""
        return self.key[1] if stat.S_ISREG(self.mode) else 0


def _key(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)  # its entries have keys of their own
    return (
        status.st_mode,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        # Two writes within a tick of the file clock may leave the same times.
        *((time.time_ns(),) if status.st_ctime_ns >= unsettled() else ()),
    )


def is_as(status: os.stat_result, entry: WorkspaceEntry) -> bool:
    """Return whether `status` matches `entry`. Without a kept content, a doubtful case matches."""
    key = _key(status)
    return key == entry.key or (entry.data is None and key[:_FIELDS] == entry.key[:_FIELDS])


def note(
    root: int, path: str, status: os.stat_result, previous: WorkspaceEntry | None, limit: int
) -> WorkspaceEntry:
    """Return the entry at `path` now, of at most `limit` bytes; `previous` if it still matches."""
    key = _key(status)
    if previous is not None and previous.key == key and len(previous.data or b"") <= limit:
        return previous
    return WorkspaceEntry(
        status.st_mode, key, status.st_mtime_ns, content(root, path, status, limit)
    )


def content(root: int, path: str, status: os.stat_result, limit: int) -> bytes | None:
    """The bytes of a file or link, none of a directory; None if they cannot be read."""
    try:
        if stat.S_ISDIR(status.st_mode):
            return b""
        with placed(root, path) as (folder, name):
            if stat.S_ISLNK(status.st_mode):
                return os.fsencode(os.readlink(name, dir_fd=folder))
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            fd = os.open(name, os.O_RDONLY | workspace_files.PLAIN, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(status.st_size + 1)
        return data if len(data) <= limit else None
    except OSError:
        return None  # gone, or something else by now: a thread of the session is changing it


def write(folder: int, name: str, entry: WorkspaceEntry) -> None:
    """Restore `name` in directory `folder` from `entry`, whose content was kept.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    assert entry.data is not None
    if stat.S_ISDIR(entry.mode):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return
    if stat.S_ISLNK(entry.mode):
        os.symlink(os.fsdecode(entry.data), name, dir_fd=folder)
        return
    # In place: a process that has the file open, as the snapshot that takes over may, keeps this
    # one.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | workspace_files.PLAIN
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        rest = memoryview(entry.data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, stat.S_IMODE(entry.mode) & 0o777)
        os.utime(fd, ns=(entry.modified, entry.modified))
    finally:
        os.close(fd)


@contextmanager
def placed(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The descriptor of the directory of `path`, open during the block, and its name there."""
    *above, name = path.split("/")
    folder = os.dup(root)
    try:
        for part in above:
            inner = os.open(part, workspace_files.PLACE, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder, name
    finally:
        os.close(folder)


def change_mode(root: int, path: str, mode: int) -> None:
    """Change the mode of `path`, which is not a link."""
    with suppress(OSError):
        with placed(root, path) as (folder, name):
            fd = os.open(name, os.O_PATH | workspace_files.PLAIN, dir_fd=folder)
        try:
            chmod(fd, mode)
        finally:
            os.close(fd)


def chmod(fd: int, mode: int) -> None:
    """fchmod(2), for a descriptor that was opened with O_PATH."""
    with suppress(OSError):
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) & 0o777)


def walk(root: int, limit: int, opened: set[str] | None = None) -> list[tuple[str, os.stat_result]]:
    """Yield every path below `root`, a directory before its entries.

    With `opened`, every directory is made accessible; the names of those that cannot be are added.

    Raises:
        OSError: there are more than `limit`, or some are too deep, or unreadable.
    """
    found: list[tuple[str, os.stat_result]] = []
    pending = [""]
    while pending:
        above = pending.pop()
        if above.count("/") > workspace_files.DEEPEST:
            raise OSError(0, f"directories more than {workspace_files.DEEPEST} deep")
        with closing(_inside(root, above)) as inside:
            for path, status in inside:
                found.append((path, status))
                if stat.S_ISDIR(status.st_mode):
                    pending.append(f"{path}/")
                    if opened is not None and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                        change_mode(root, path, status.st_mode | stat.S_IRWXU)
                        opened.add(path)
                if len(found) > limit:
                    raise OSError(0, f"more than {limit:,} files")
    return found


def _inside(root: int, above: str) -> Generator[tuple[str, os.stat_result]]:
    """The entries of the directory whose path, with a slash behind it, is `above`."""
    with placed(root, f"{above}.") as (parent, name):
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | workspace_files.PLAIN, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield above + entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(folder)
