"""One session's group: what joins it, what it has refused, what it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from ..types import KillReason
from .files import Files, limit_memory, limits, put, rows

_READ: Final = 1 << 16
# A group that still holds more than this after its session keeps it from the next one's account.
_CLEAN = 1 << 20


class Group:
    """A group with its limits. Thread-safe where it is used so: counts are read by one caller.

    `folders` are there already. Raises OSError if the kernel refuses a limit or a file is missing.
    """

    def __init__(self, folders: tuple[str, ...], files: Files, memory: int, processes: int) -> None:
        self.folders = folders
        self.version = 1 if files.swap_allowed else 2
        self._files = files
        self._pid = os.getpid()
        self._memory = self._processes = 0
        self._opened: list[int] = []
        self.gone: Callable[[Group], None] = lambda group: None
        try:
            self.limit(memory, processes)
            self.joins = tuple(
                self._open(folder, name, os.O_WRONLY) for folder, name in files.join
            ) or (self._open(0, "", os.O_PATH | os.O_DIRECTORY),)
            self._kills = self._open(*files.out_of_memory[:2])
            self._refusals = self._open(*files.out_of_processes[:2])
            self._stat = self._open(0, "memory.stat")
            self._used = self._open(0, files.used)
            self._members = self._open(files.pids[0], "pids.current")
            self._seen = self._counts()
        except BaseException:
            self.close()
            raise

    def _open(self, folder: int, name: str, flags: int = os.O_RDONLY) -> int:
        fd = os.open(f"{self.folders[folder]}/{name}", flags | os.O_CLOEXEC)
        self._opened.append(fd)
        return fd

    def limit(self, memory: int, processes: int) -> None:
        """Set the limits: bytes, and processes with their threads."""
        if memory != self._memory:
            limit_memory(self.folders[0], self._files, memory)
            self._memory = memory
        if processes != self._processes:
            folder, name = self._files.pids
            put(f"{self.folders[folder]}/{name}", processes)
            self._processes = processes

    def limits(self) -> tuple[int, int]:
        """The limits as the kernel has them: bytes, and processes. -1: none."""
        return limits(self.folders, self._files)

    def hit(self) -> tuple[KillReason, ...]:
        """Which limits the kernel has enforced since this was last asked."""
        before, self._seen = self._seen, self._counts()
        names: tuple[KillReason, KillReason] = ("memory", "processes")
        pairs = zip(names, before, self._seen, strict=True)
        return tuple(name for name, old, new in pairs if new > old)

    def _counts(self) -> tuple[int, int]:
        kills = rows(os.pread(self._kills, _READ, 0), (self._files.out_of_memory[2],))
        refusals = rows(os.pread(self._refusals, _READ, 0), (self._files.out_of_processes[2],))
        return kills, refusals

    def held(self) -> int:
        """Bytes of private and shared pages and of files in tmpfs that are charged to it."""
        return rows(os.pread(self._stat, _READ, 0), self._files.held)

    def reusable(self) -> bool:
        """Whether nobody is in it any more and the next session would find it as new."""
        if int(os.pread(self._members, 64, 0)):
            return False
        # What is charged is cheaper to read than what it is made of, and often enough to know.
        if int(os.pread(self._used, 64, 0)) > _CLEAN and self.held() > _CLEAN:
            return False
        self._seen = self._counts()
        return True

    def release(self) -> None:
        """Its session has ended, or will. In a forked child: nothing, the group is the parent's."""
        if os.getpid() == self._pid:
            self.gone(self)

    def close(self) -> None:
        """Close its files."""
        while self._opened:
            os.close(self._opened.pop())
