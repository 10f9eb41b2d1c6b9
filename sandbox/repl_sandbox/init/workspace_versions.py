"""`WorkspaceVersions`: earlier contents of a directory, by the cells after which it had them."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, TypeAlias

from ..worker.snapshots import MAX_FILES, unsettled
from . import files

# `WorkspaceEntry`: notes and restores a path below a directory that others change meanwhile.
#
# Each component is opened in the directory before it, as in `files.py`, and closed again:
# the process lives as long as the session.

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


def is_unchanged(status: os.stat_result, entry: WorkspaceEntry) -> bool:
    """Return whether `status` matches `entry`. Without a kept content, a doubtful case matches."""
    key = _key(status)
    return key == entry.key or (entry.data is None and key[:_FIELDS] == entry.key[:_FIELDS])


def note_entry(
    root: int, path: str, status: os.stat_result, previous: WorkspaceEntry | None, limit: int
) -> WorkspaceEntry:
    """Return the entry at `path` now, of at most `limit` bytes; `previous` if it still matches."""
    key = _key(status)
    if previous is not None and previous.key == key and len(previous.data or b"") <= limit:
        return previous
    return WorkspaceEntry(
        status.st_mode, key, status.st_mtime_ns, entry_content(root, path, status, limit)
    )


def entry_content(root: int, path: str, status: os.stat_result, limit: int) -> bytes | None:
    """The bytes of a file or link, none of a directory; None if they cannot be read."""
    try:
        if stat.S_ISDIR(status.st_mode):
            return b""
        with opened_parent(root, path) as (folder, name):
            if stat.S_ISLNK(status.st_mode):
                return os.fsencode(os.readlink(name, dir_fd=folder))
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            fd = os.open(name, os.O_RDONLY | files.PLAIN, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(status.st_size + 1)
        return data if len(data) <= limit else None
    except OSError:
        return None  # gone, or something else by now: a thread of the session is changing it


def write_entry(folder: int, name: str, entry: WorkspaceEntry) -> None:
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
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | files.PLAIN
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
def opened_parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The descriptor of the directory of `path`, open during the block, and its name there."""
    *above, name = path.split("/")
    folder = os.dup(root)
    try:
        for part in above:
            inner = os.open(part, files.PLACE, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder, name
    finally:
        os.close(folder)


def change_mode(root: int, path: str, mode: int) -> None:
    """Change the mode of `path`, which is not a link."""
    with suppress(OSError):
        with opened_parent(root, path) as (folder, name):
            fd = os.open(name, os.O_PATH | files.PLAIN, dir_fd=folder)
        try:
            change_open_mode(fd, mode)
        finally:
            os.close(fd)


def change_open_mode(fd: int, mode: int) -> None:
    """fchmod(2), for a descriptor that was opened with O_PATH."""
    with suppress(OSError):
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) & 0o777)


def walk_entries(
    root: int, limit: int, opened: set[str] | None = None
) -> list[tuple[str, os.stat_result]]:
    """Return every path below `root`, a directory before its entries.

    With `opened`, every directory is made accessible; the names of those that cannot be are added.

    Raises:
        OSError: there are more than `limit`, or some are too deep, or unreadable.
    """
    found: list[tuple[str, os.stat_result]] = []
    pending = [""]
    while pending:
        above = pending.pop()
        if above.count("/") > files.DEEPEST:
            raise OSError(0, f"directories more than {files.DEEPEST} deep")
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
    with opened_parent(root, f"{above}.") as (parent, name):
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | files.PLAIN, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield above + entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(folder)


# Bytes of files: reading so much takes some 30 ms, for which the next cell waits.
BUDGET = 64 << 20
# The most entries that are removed if there are too many: a second.
_MAX_REMOVED = 100_000
_MAX_LOST = 20
_LONGEST_NAME = 200  # characters

Version: TypeAlias = dict[str, WorkspaceEntry]


class WorkspaceVersions:
    """The contents of directory `root` after some cells, by number: the `count` latest of them.

    And those before the first cell, a state that needs no snapshot of the worker.
    """

    def __init__(self, root: int, count: int) -> None:
        self._root = root
        self._count = count
        self._mode = os.fstat(root).st_mode
        # In place of a content: the reason why it could not be kept.
        self._versions: dict[int, Version | str] = {}

    def keep(self, cell: int, needed: list[int]) -> None:
        """Keep the present content as that after `cell`; forget those of no `needed` cell."""
        last = self._versions.get(max(self._versions, default=0), {})
        try:
            self._versions[cell] = self._content({} if isinstance(last, str) else last)
        except OSError as error:
            self._versions[cell] = error.strerror or "they cannot be read"
        latest = sorted({self._before(number) for number in (*needed, cell)})[-self._count :]
        needed_numbers = {self._before(0), *latest}
        self._versions = {
            number: content
            for number, content in self._versions.items()
            if number in needed_numbers
        }

    def _content(self, latest: Version) -> Version:
        remaining = BUDGET
        version: Version = {}
        for path, status in walk_entries(self._root, MAX_FILES):
            entry = note_entry(self._root, path, status, latest.get(path), remaining)
            remaining -= len(entry.data or b"")
            version[path] = entry
        return version

    def restore(self, cell: int) -> list[str]:
        """Restore the content from after `cell`; return the names of entries that could not be
        restored.
        """
        version = self._versions.get(self._before(cell), {})
        self._versions = {
            number: content for number, content in self._versions.items() if number <= cell
        }
        if isinstance(version, str):
            return [f"files: {version}; they are as the code left them"]
        try:
            opened = self._open_up()
            lost = self._make(version, opened)
        finally:
            change_open_mode(self._root, self._mode)
        more = len(lost) - _MAX_LOST
        return lost if more <= 0 else [*lost[:_MAX_LOST], f"{more:,} more files"]

    def _open_up(self) -> set[str]:
        """Give this process access to every directory; return the modes of those that it
        changed.
        """
        change_open_mode(self._root, self._mode | stat.S_IRWXU)
        opened: set[str] = set()
        for path, status in walk_entries(self._root, _MAX_REMOVED, opened):
            if stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IWUSR:
                change_mode(self._root, path, status.st_mode | stat.S_IWUSR)
        return opened

    def _make(self, version: Version, opened: set[str]) -> list[str]:
        present = dict(walk_entries(self._root, _MAX_REMOVED))
        lost = [
            f"file {_shown(path)}: cannot be removed"
            for path in sorted(present.keys() - version.keys(), reverse=True)
            if not self._remove(path, present[path])
        ]
        folders = []
        names: dict[int, str] = {}  # of inodes: a path under which each is unchanged
        for path, entry in sorted(version.items()):
            status = present.get(path)
            if status is None or path in opened or not self._is_still(path, entry, status):
                problem = self._put_back(path, entry, status, names.get(entry.inode))
                if problem:
                    lost.append(f"file {_shown(path)}: {problem}")
                    continue
                if stat.S_ISDIR(entry.mode):
                    folders.append((path, entry.mode))
            if entry.inode:
                names.setdefault(entry.inode, path)
        # Last, and the innermost first: their entries had to be written.
        for path, mode in reversed(folders):
            change_mode(self._root, path, mode)
        return lost

    def _is_still(self, path: str, entry: WorkspaceEntry, status: os.stat_result) -> bool:
        """Return whether it is unchanged; a write by a mapping leaves no mark in the key."""
        if not is_unchanged(status, entry):
            return False
        if not entry.inode or entry.data is None:
            return True
        return entry_content(self._root, path, status, BUDGET) == entry.data

    def _before(self, cell: int) -> int:
        return max((number for number in self._versions if number <= cell), default=-1)

    def _remove(self, path: str, status: os.stat_result) -> bool:
        with suppress(OSError), opened_parent(self._root, path) as (folder, name):
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
            return True
        return False

    def _put_back(
        self, path: str, entry: WorkspaceEntry, status: os.stat_result | None, twin: str | None
    ) -> str:
        """Restore `path` from `entry`, as a link to `twin` if there is one; return the reason of a
        failure.
        """
        same = status is not None and stat.S_IFMT(status.st_mode) == stat.S_IFMT(entry.mode)
        if entry.data is None and not twin and not (same and stat.S_ISDIR(entry.mode)):
            return "its content was not kept"
        if status is not None and not (same and not twin and _is_its_own(status, entry)):
            self._remove(path, status)
        try:
            with opened_parent(self._root, path) as (folder, name):
                if twin:
                    self._link(twin, folder, name)
                else:
                    write_entry(folder, name, entry)
        except OSError as error:
            return error.strerror or "it cannot be written"
        return ""

    def _link(self, twin: str, folder: int, name: str) -> None:
        with opened_parent(self._root, twin) as (above, source):
            os.link(source, name, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)


def _is_its_own(status: os.stat_result, entry: WorkspaceEntry) -> bool:
    """Return whether `entry` can be written in place: a newer file may have other names too."""
    return stat.S_ISDIR(entry.mode) or (entry.inode == status.st_ino)


def _shown(path: str) -> str:
    """`path` as plain text: of a long one the end, because all losses are in one message."""
    shown = ascii(path)
    return shown if len(shown) <= _LONGEST_NAME else f"...{shown[-_LONGEST_NAME:]}"
