"""`SessionCgroup`: the cgroup of one session: its limits, descriptors to enter it, its counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import IsolationError
from ...types import KillReason
from .cgroup_interface import CgroupInterface, limit_memory, limits, number, put, rows

# A cgroup that still holds more than this after its session would charge the next one.
_CLEAN: Final = 1 << 20


_REMEDY = (
    "Give the group of this process room for more (cgroup.max.descendants) and leave its folders "
    "repl-env-* alone, or make the sandbox with cgroup='off'"
)


def refusal(error: OSError) -> IsolationError:
    """The error for a cgroup that cannot be made, limited or entered."""
    message = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return IsolationError("jailed", "cgroup", message, _REMEDY)


class SessionCgroup:
    """A cgroup with limits; its folders exist already. OSError if the kernel refuses.

    Nothing is kept open between uses: a host with a thousand sessions has few descriptors to spare,
    and opening a file of the hierarchy takes 6 µs.
    """

    def __init__(
        self,
        folders: tuple[str, ...],
        files: CgroupInterface,
        memory: int,
        processes: int,
        *,
        weighted: bool = False,
    ) -> None:
        self.folders = folders
        self.weighted = weighted
        self._slowed = False
        self.version = files.version
        self._files = files
        self._pid = os.getpid()
        self._memory = self._processes = 0
        self.on_removed: Callable[[SessionCgroup], None] = lambda group: None
        self.limit(memory, processes)
        self._last_counts = self._counts()

    def _path(self, file: tuple[int, str]) -> str:
        folder, name = file
        return f"{self.folders[folder]}/{name}"

    def limit(self, memory: int, processes: int) -> None:
        """Set the limits: bytes, and processes with their threads."""
        if memory != self._memory:
            limit_memory(self.folders[0], self._files, memory)
            self._memory = memory
        if processes != self._processes:
            put(self._path(self._files.pids), processes)
            self._processes = processes

    def limits(self) -> tuple[int, int]:
        """The limits from the kernel: bytes, and processes. -1: none."""
        return limits(self.folders, self._files)

    @contextmanager
    def entrance(self) -> Iterator[list[int]]:
        """Return descriptors by which to enter it: files to write to, or the folder to fork
        into.
        """
        opened: list[int] = []
        try:
            try:
                self._open_into(opened)
            except OSError as error:
                raise refusal(error) from error
            yield opened
        finally:
            for fd in opened:
                os.close(fd)

    def _open_into(self, opened: list[int]) -> None:
        # One by one, so that those before one that fails are closed.
        writing, passing = os.O_WRONLY | os.O_CLOEXEC, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        opened.extend(
            os.open(self._path(file), writing)
            for file in self._files.join
            if file[0] < len(self.folders)
        )
        if not opened:
            opened.append(os.open(self.folders[0], passing))

    def hit(self) -> tuple[KillReason, ...]:
        """The limits that the kernel has enforced since the last call, as far as known."""
        before = self._last_counts
        try:
            self._last_counts = self._counts()
        except OSError:
            return ()  # the cgroup was removed, which `Session.isolation` shows
        names: tuple[KillReason, KillReason] = ("memory", "processes")
        pairs = zip(names, before, self._last_counts, strict=True)
        return tuple(name for name, old, new in pairs if new > old)

    def _counts(self) -> tuple[int, int]:
        """The numbers of killed processes and of refused forks."""
        files = self._files
        return rows(self._path(files.kills), b"oom_kill"), rows(self._path(files.refusals), b"max")

    def memory_used(self) -> int:
        """Bytes charged to it that the kernel cannot reclaim, files in tmpfs included.

        Page tables among them on version 2 only.
        """
        return rows(self._path((0, "memory.stat")), *self._files.counted)

    def set_weight(self, *, slowed: bool) -> None:
        """Set the CPU weight, if the cgroup has one: low if `slowed`, else ordinary."""
        if slowed != self._slowed:
            files = self._files
            put(self._path(files.weight), files.low if slowed else files.ordinary)
            self._slowed = slowed

    def reusable(self) -> bool:
        """Return whether it has no processes and is as new for the next session."""
        self.set_weight(slowed=False)
        if number(self._path(self._files.members)):
            return False
        # The charge is cheaper to read than its parts, and often sufficient.
        if number(self._path(self._files.used)) > _CLEAN and self.memory_used() > _CLEAN:
            return False
        self._last_counts = self._counts()
        return True

    def release(self) -> None:
        """Release it: its session has ended, or will. In a forked child: nothing, the parent owns
        it.
        """
        if os.getpid() == self._pid:
            self.on_removed(self)
