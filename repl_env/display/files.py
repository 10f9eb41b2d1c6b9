"""`NamedFiles`: the files that a viewer may read, opened without following links, line by line."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

# `NamedFiles`: the files that a viewer may read, opened without following links.

SUFFIX: Final = ".jsonl"  # of files below a folder; a file that is named itself may have any
MAX_DEPTH: Final = 4  # folders below a named one
MAX_FILES: Final = 10_000  # files; the list of runs stays quick to send


def _flags() -> int:
    # O_NONBLOCK: opening a pipe must not wait for its writer.
    return os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A regular file: a path that was named, or one below it by `parts`."""

    id: str
    path: Path
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name to show: relative to the folder that was named."""
        return "/".join(self.parts) or self.path.name

    @property
    def address(self) -> str:
        """The absolute path, by its text alone: links in it are not resolved."""
        return os.path.abspath(self.path.joinpath(*self.parts))

    def open(self) -> BinaryIO:
        """Open the file for reading.

        Raises:
            OSError: it is gone, is not a regular file, or a component below the named path is a
                link.
        """
        folders = os.O_DIRECTORY if self.parts else 0
        file = os.open(self.path, _flags() | folders)
        for number, part in enumerate(self.parts, 1):
            more = os.O_DIRECTORY if number < len(self.parts) else 0
            try:
                below = os.open(part, _flags() | more, dir_fd=file)
            finally:
                os.close(file)
            file = below
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(f"{self.name} is not a regular file")
        return os.fdopen(file, "rb")

    def signature(self) -> tuple[int, int, int]:
        """Return what differs once the content does; OSError as of `open`."""
        with self.open() as file:
            found = os.fstat(file.fileno())
        return found.st_ino, found.st_size, found.st_mtime_ns


class NamedFiles:
    """The regular files among `paths` and in the folders among them, which may change.

    Raises:
        OSError: a path does not exist, is a link, or cannot be read; the system, as Windows, cannot
            open files without following links.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        if not hasattr(os, "O_NOFOLLOW"):
            raise OSError("this system opens links unseen: use Linux, macOS or WSL for the viewer")
        self._paths = tuple(dict.fromkeys(paths))
        self._known: dict[tuple[Path, tuple[str, ...]], NamedFile] = {}
        self._by_id: dict[str, NamedFile] = {}
        for path in self._paths:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise OSError(f"{path} is a symbolic link; name its target instead")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(f"{path} is neither a file nor a folder")
            os.close(os.open(path, _flags()))
        self.files()

    def files(self) -> list[NamedFile]:
        """Return the files that are there now; one keeps its `id`."""
        found = []
        for path in self._paths:
            for parts in _regular(path):
                found.append(self._named(path, parts))
                if len(found) == MAX_FILES:
                    return found
        return found

    def get(self, identifier: str) -> NamedFile:
        """Return the file of an `id` that `files` gave; KeyError if there is none."""
        return self._by_id[identifier]

    def _named(self, path: Path, parts: tuple[str, ...]) -> NamedFile:
        key = path, parts
        if key not in self._known:
            file = NamedFile(str(len(self._known)), path, parts)
            self._known[key] = self._by_id[file.id] = file
        return self._known[key]


def _regular(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield () for a file; for a folder the parts of each file of the suffix below it."""
    try:
        folder = os.open(path, _flags() | os.O_DIRECTORY)
    except NotADirectoryError:
        yield ()
        return
    except OSError:  # removed since it was named
        return
    try:
        yield from _below(folder, ())
    finally:
        os.close(folder)


def _below(folder: int, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        here = (*parts, entry.name)
        if entry.is_file(follow_symlinks=False) and entry.name.endswith(SUFFIX):
            yield here
        elif entry.is_dir(follow_symlinks=False) and len(here) <= MAX_DEPTH:
            try:
                below = os.open(entry.name, _flags() | os.O_DIRECTORY, dir_fd=folder)
            except OSError:  # not ours to read, or replaced by a link meanwhile
                continue
            try:
                yield from _below(below, here)
            finally:
                os.close(below)


# `GrowingLines`: the whole lines of a file that may still grow, each once, with their places.

# A longer line is told to be too long: an event has no more than outputs and prompts of a turn.
LONGEST_LINE: Final = 64 * 2**20


class GrowingLines:
    """Lines of `file` from where the last call ended.

    Attributes:
        generation: counts how often the file was found shorter, or another one, and begun anew.
        size: of the file at the last call, in bytes.
        more: whether the last call ended before the last whole line.
    """

    def __init__(self, file: NamedFile) -> None:
        self.file = file
        self.generation = 0
        self.size = 0
        self.more = True
        self._offset = 0
        self._inode: int | None = None

    def read(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Yield the place in bytes and the content of each further line, for about `seconds`.

        The content has no newline. It is empty for a line that is longer than `LONGEST_LINE`.

        Raises:
            OSError: the file cannot be read.
        """
        until = time.monotonic() + seconds
        with self.file.open() as file:
            self._restart_if_replaced(os.fstat(file.fileno()))
            file.seek(self._offset)
            while True:
                line = file.readline(LONGEST_LINE)
                while len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
                    skipped = file.readline(LONGEST_LINE)
                    line = b"\n" if skipped.endswith(b"\n") else b"" if not skipped else line
                if not line.endswith(b"\n"):
                    self.more = False
                    return
                at, self._offset = self._offset, file.tell()
                yield at, line[:-1]
                if time.monotonic() > until:
                    self.more = True
                    return

    def _restart_if_replaced(self, now: os.stat_result) -> None:
        if now.st_size < self._offset or self._inode not in {None, now.st_ino}:
            self.generation += 1
            self._offset = 0
        self._inode, self.size = now.st_ino, now.st_size
