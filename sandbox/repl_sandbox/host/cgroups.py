"""Cgroups of sessions: made, reused and removed by a `CgroupPool`, limited by a `SessionCgroup`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import IsolationError
from ..types import KillReason
from .cgroup_files import (
    LEAF,
    NEEDED,
    VERSIONS,
    WEIGHING,
    CgroupInterface,
    CgroupRoot,
    CgroupUnavailable,
    limit_memory,
    memory_limits,
    read_number,
    read_rows,
    words,
    write_value,
)

# `SessionCgroup`: the cgroup of one session: its limits, descriptors to enter it, its counters.

# A cgroup that still holds more than this after its session would charge the next one.
_CLEAN: Final = 1 << 20
# A cgroup of version 1 was full if its memory came this close to its limit: the kernel charges in
# batches of 64 pages for each processor (MEMCG_CHARGE_BATCH).
_NEARLY: Final = 1 << 20


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
        self._last_full = 0

    def _path(self, file: tuple[int, str]) -> str:
        folder, name = file
        return f"{self.folders[folder]}/{name}"

    def limit(self, memory: int, processes: int) -> None:
        """Set the limits: bytes, and processes with their threads."""
        if memory != self._memory:
            limit_memory(self.folders[0], self._files, memory)
            self._memory = memory
        if processes != self._processes:
            write_value(self._path(self._files.pids), processes)
            self._processes = processes

    def limits(self) -> tuple[int, int]:
        """The limits from the kernel: bytes, and processes. -1: none."""
        return memory_limits(self.folders, self._files)

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
            killed, refused = (
                new > old for old, new in zip(before, self._last_counts, strict=True)
            )
            # The kernel counts a kill in the group of the victim, for whose limit it ever was.
            memory: KillReason = "memory" if killed and self._was_full() else "machine"
        except OSError:
            return ()  # the cgroup was removed, which `Session.isolation` shows
        hits: tuple[tuple[bool, KillReason], ...] = ((killed, memory), (refused, "processes"))
        return tuple(name for hit, name in hits if hit)

    def _counts(self) -> tuple[int, int]:
        """The numbers of killed processes and of refused forks."""
        files = self._files
        return (
            read_rows(self._path(files.kills), b"oom_kill"),
            read_rows(self._path(files.refusals), b"max"),
        )

    def _was_full(self) -> bool:
        """Whether the cgroup itself was full since the last call."""
        paths = [self._path(file) for file in self._files.full]
        if self.version == 2:
            before, self._last_full = self._last_full, read_rows(paths[0], b"oom")
            return self._last_full > before
        peaks = {path: read_number(path) for path in paths if os.path.exists(path)}
        for path in peaks:
            write_value(path, 0)  # the most memory is counted anew
        return max(peaks.values()) >= self._memory - _NEARLY

    def memory_used(self) -> int:
        """Bytes charged to it that the kernel cannot reclaim, files in tmpfs included.

        Page tables among them on version 2 only.
        """
        return read_rows(self._path((0, "memory.stat")), *self._files.counted)

    def set_weight(self, *, slowed: bool) -> None:
        """Set the CPU weight, if the cgroup has one: low if `slowed`, else ordinary."""
        if slowed != self._slowed:
            files = self._files
            write_value(self._path(files.weight), files.low if slowed else files.ordinary)
            self._slowed = slowed

    def reusable(self) -> bool:
        """Return whether it has no processes and is as new for the next session."""
        self.set_weight(slowed=False)
        if read_number(self._path(self._files.members)):
            return False
        # The charge is cheaper to read than its parts, and often sufficient.
        if read_number(self._path(self._files.used)) > _CLEAN and self.memory_used() > _CLEAN:
            return False
        self._last_counts = self._counts()
        self._was_full()
        return True

    def release(self) -> None:
        """Release it: its session has ended, or will. In a forked child: nothing, the parent owns
        it.
        """
        if os.getpid() == self._pid:
            self.on_removed(self)


# `CgroupPool`: the cgroups of a sandbox, created, reused and removed; removal of those of dead
# hosts.
#
# All lie in one folder of the sandbox's own, `repl-env-PID-RANDOM`, in each hierarchy. The
# sandbox holds a lock on the folder (flock(2)), which the kernel releases however the process
# ends. So a folder that can be locked belongs to nobody, whatever process id its name has.

_OWN = re.compile(r"repl-env-\d+-[0-9a-f]{8}")
# Free cgroups that are kept for later sessions. Each takes some 100 KiB of the kernel's memory on a
# machine with few processors.
_SPARE = 32
# A reaped process still counts until it is switched out: on a busy machine until its next turn.
_TIMEOUT = 10.0
_PAUSE = 0.002


class CgroupPool:
    """The cgroups of one sandbox. Thread-safe; unusable in a forked child.

    `weighted`: their CPU weights can be set, which requires that the root has that controller.

    Raises:
        IsolationError: a folder cannot be made, or controllers cannot be enabled.
    """

    def __init__(self, place: CgroupRoot, *, weighted: bool = False) -> None:
        self.weighted = weighted and bool(place.weighing)
        self._files = VERSIONS[place.version]
        controllers, places = set(NEEDED), place.folders
        if self.weighted:
            controllers.add(WEIGHING)
            if place.version == 1:
                places = (*places, place.weighing)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._free: deque[SessionCgroup] = deque()
        self._all: set[SessionCgroup] = set()
        self._leaving: list[SessionCgroup] = []
        self._locks: list[int] = []
        self._folders: tuple[str, ...] = ()
        name = f"repl-env-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            if place.needs_leaf:
                _move_to_leaf(place.folders[0])
            if place.version == 2:
                _reuse(places[0], controllers)
            # A version 1 hierarchy with two controllers has one folder twice.
            for folder in dict.fromkeys(places):
                sweep(folder)
                self._locks.append(_make_locked(f"{folder}/{name}"))
            self._folders = tuple(f"{folder}/{name}" for folder in places)
            if place.version == 2:
                _reuse(self._folders[0], controllers)
        except OSError as error:
            self._folders = self._folders or tuple(f"{at}/{name}" for at in places)
            self.close()
            raise refusal(error) from error
        _alive.add(self)

    def take(self, memory: int, processes: int) -> SessionCgroup:
        """Return an empty cgroup with these limits: bytes, and processes with their threads.

        Raises:
            IsolationError: it cannot be made, or its limits cannot be set.
        """
        try:
            group = self._free.popleft()
        except IndexError:
            return self._make(memory, processes)
        try:
            group.limit(memory, processes)
        except OSError as error:
            self._drop(group)
            raise refusal(error) from error
        return group

    def _make(self, memory: int, processes: int) -> SessionCgroup:
        name = f"session-{next(self._numbers)}"
        folders = tuple(f"{folder}/{name}" for folder in self._folders)
        created = []
        try:
            for folder in dict.fromkeys(folders):
                os.mkdir(folder)
                created.append(folder)
            group = SessionCgroup(folders, self._files, memory, processes, weighted=self.weighted)
        except OSError as error:
            for folder in created:
                _remove(folder)
            raise refusal(error) from error
        group.on_removed = self._note_removed
        with self._lock:
            self._all.add(group)
            self._remove_leaving()
        return group

    def _note_removed(self, group: SessionCgroup) -> None:
        """Handle the end of the session of `group`, which has ended or will."""
        with self._lock:
            if group not in self._all:  # the sandbox was closed first
                return
        try:
            reusable = len(self._free) < _SPARE and group.reusable()
        except OSError:
            reusable = False
        if reusable:
            self._free.append(group)
        else:
            self._drop(group)

    def _drop(self, group: SessionCgroup) -> None:
        with self._lock:
            self._all.discard(group)
            self._leaving.append(group)
            self._remove_leaving()

    def _remove_leaving(self) -> None:
        """Remove the cgroups that are not reused; those that are not empty yet, at the next
        call.
        """
        leaving, self._leaving = self._leaving, []
        for group in leaving:
            if not all(list(map(_remove, dict.fromkeys(group.folders)))):
                self._leaving.append(group)

    def close(self) -> None:
        """Remove all cgroups. The sessions have ended."""
        with self._lock:
            self._all = set()
        self._free.clear()
        for folder in dict.fromkeys(self._folders):
            _clear(folder, _TIMEOUT)
        while self._locks:
            os.close(self._locks.pop())

    def forked(self) -> None:
        """In a forked child: release the locks, so that only the host has them."""
        while self._locks:
            os.close(self._locks.pop())


def open_groups(found: CgroupRoot | CgroupUnavailable, *, weighted: bool = False) -> CgroupPool:
    """Return the cgroups of a sandbox that must have them, weighed if `weighted` and possible.

    Raises:
        IsolationError: `found` is unavailable, or turns out not to work.
    """
    if isinstance(found, CgroupUnavailable):
        raise IsolationError("jailed", "cgroup", found.reason, found.remedy)
    if weighted:
        with contextlib.suppress(IsolationError):
            return CgroupPool(found, weighted=True)
    return CgroupPool(found)


def sweep(folder: str) -> None:
    """Remove the cgroups in `folder` whose sandboxes are gone."""
    for name in os.listdir(folder):
        if not _OWN.fullmatch(name):
            continue
        try:
            fd = _lock(f"{folder}/{name}")
        except OSError:
            continue  # locked by its owner, or removed by another sweep
        try:
            _clear(f"{folder}/{name}", 0.0)
        finally:
            os.close(fd)


def _lock(folder: str) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder)  # another sweep has removed it
    except OSError:
        os.close(fd)
        raise
    return fd


def _make_locked(folder: str) -> int:
    """Make `folder` and lock it; a sweep of another process may lock it in between."""
    while True:
        os.mkdir(folder)
        try:
            return _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            # The sweep removes it while it has the lock.
            _remove(folder)


def _clear(folder: str, timeout: float) -> None:
    """Remove `folder` and the cgroups in it, or leave them for a later sweep."""
    end = time.monotonic() + timeout
    try:
        inside = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return
    for path in (*inside, folder):
        while not _remove(path) and time.monotonic() < end:
            time.sleep(_PAUSE)


def _remove(folder: str) -> bool:
    """Remove an empty cgroup; False if it has processes.

    One that this process may no longer remove, because it changed its user, is left to a sweep.
    """
    try:
        os.rmdir(folder)
    except (FileNotFoundError, PermissionError):
        return True
    except OSError:
        return False
    return True


# ── version 2 ─────────────────────────────────────────────────────────────────────────────────


def _reuse(folder: str, controllers: set[str]) -> None:
    """Enable the controllers for the cgroups in `folder`."""
    path = f"{folder}/cgroup.subtree_control"
    missing = controllers - set(words(path))
    if missing:
        write_value(path, " ".join(f"+{name}" for name in sorted(missing)))


def _move_to_leaf(folder: str) -> None:
    """Move this program's processes from `folder` into a leaf: only leaves may hold processes."""
    leaf = f"{folder}/{LEAF}"
    try:
        os.mkdir(leaf)
    except FileExistsError:
        pass
    while pids := words(f"{folder}/cgroup.procs"):
        for pid in pids:
            try:
                write_value(f"{leaf}/cgroup.procs", pid)
            except OSError as error:
                if error.errno != errno.ESRCH:  # it has ended meanwhile
                    raise


_alive: weakref.WeakSet[CgroupPool] = weakref.WeakSet()


def _forget_in_child() -> None:
    for groups in list(_alive):
        groups.forked()


os.register_at_fork(after_in_child=_forget_in_child)
