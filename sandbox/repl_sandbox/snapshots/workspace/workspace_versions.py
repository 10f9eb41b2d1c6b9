"""`WorkspaceVersions`: earlier contents of a directory, by the cells after which it had them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TypeAlias

from . import workspace_entries
from .file_changes import MAX_FILES
from .workspace_entries import WorkspaceEntry

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
        for path, status in workspace_entries.walk(self._root, MAX_FILES):
            entry = workspace_entries.note(self._root, path, status, latest.get(path), remaining)
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
            workspace_entries.chmod(self._root, self._mode)
        more = len(lost) - _MAX_LOST
        return lost if more <= 0 else [*lost[:_MAX_LOST], f"{more:,} more files"]

    def _open_up(self) -> set[str]:
        """Give this process access to every directory; return the modes of those that it
        changed.
        """
        workspace_entries.chmod(self._root, self._mode | stat.S_IRWXU)
        opened: set[str] = set()
        for path, status in workspace_entries.walk(self._root, _MAX_REMOVED, opened):
            if stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IWUSR:
                workspace_entries.change_mode(self._root, path, status.st_mode | stat.S_IWUSR)
        return opened

    def _make(self, version: Version, opened: set[str]) -> list[str]:
        present = dict(workspace_entries.walk(self._root, _MAX_REMOVED))
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
            workspace_entries.change_mode(self._root, path, mode)
        return lost

    def _is_still(self, path: str, entry: WorkspaceEntry, status: os.stat_result) -> bool:
        """Return whether it is unchanged; a write by a mapping leaves no mark in the key."""
        if not workspace_entries.is_as(status, entry):
            return False
        if not entry.inode or entry.data is None:
            return True
        return workspace_entries.content(self._root, path, status, BUDGET) == entry.data

    def _before(self, cell: int) -> int:
        return max((number for number in self._versions if number <= cell), default=-1)

    def _remove(self, path: str, status: os.stat_result) -> bool:
        with suppress(OSError), workspace_entries.placed(self._root, path) as (folder, name):
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
            with workspace_entries.placed(self._root, path) as (folder, name):
                if twin:
                    self._link(twin, folder, name)
                else:
                    workspace_entries.write(folder, name, entry)
        except OSError as error:
            return error.strerror or "it cannot be written"
        return ""

    def _link(self, twin: str, folder: int, name: str) -> None:
        with workspace_entries.placed(self._root, twin) as (above, source):
            os.link(source, name, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)


def _is_its_own(status: os.stat_result, entry: WorkspaceEntry) -> bool:
    """Return whether `entry` can be written in place: a newer file may have other names too."""
    return stat.S_ISDIR(entry.mode) or (entry.inode == status.st_ino)


def _shown(path: str) -> str:
    """`path` as plain text: of a long one the end, because all losses are in one message."""
    shown = ascii(path)
    return shown if len(shown) <= _LONGEST_NAME else f"...{shown[-_LONGEST_NAME:]}"
