"""The keeper: a process of a session that holds earlier contents of its workspace.

Forked by init when files are first to be kept; like a clerk it is init's code with the rights of
the session's code to files and no others. What it keeps is in its own memory, up to a budget:
whoever looks at the session's places finds nothing, and what is opened there stays the file that it
was.
"""

from __future__ import annotations

import _signal
import json
import os
import socket
import stat
import struct
import time
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from ..jail.recipe import RECIPES, Jail, contain
from . import workspace

# Bytes of files: reading so much takes some 30 ms, for which the next cell waits.
BUDGET = 64 << 20
# Files and directories; looking at each takes microseconds, after every cell that changes one.
MOST_FILES = 10_000
_MOST_LOST = 20
# Nanoseconds; as in worker/files.py.
_TICK = 20_000_000
_LENGTH = struct.Struct("=I")


class Entry(NamedTuple):
    """What was at a path. `key` tells whether it still is; `data` is None where it is not kept."""

    mode: int
    key: tuple[int, ...]
    modified: int  # nanoseconds
    data: bytes | None


Version = dict[str, Entry]


class Versions:
    """The contents of directory `root` after some cells, by number."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._kept: dict[int, Version] = {}

    def keep(self, cell: int, needed: list[int]) -> None:
        """Note what is there now as the content after `cell`; forget what no `needed` one has."""
        latest = self._kept.get(max(self._kept, default=0), {})
        room = BUDGET
        version: Version = {}
        for path, status in _walk(self._root):
            entry = _entry(self._root, path, status, latest.get(path), room)
            room -= len(entry.data or b"")
            version[path] = entry
        self._kept[cell] = version
        wanted = {self._before(number) for number in (*needed, cell)}
        self._kept = {number: kept for number, kept in self._kept.items() if number in wanted}

    def restore(self, cell: int) -> list[str]:
        """Make the content what it was after `cell`; names of what could not be."""
        version = self._kept.get(self._before(cell), {})
        self._kept = {number: kept for number, kept in self._kept.items() if number <= cell}
        there = dict(_walk(self._root))
        lost = [
            f"file {path!a}: cannot be removed"
            for path in sorted(there.keys() - version.keys(), reverse=True)
            if not self._remove(path, there[path])
        ]
        for path, entry in sorted(version.items()):
            status = there.get(path)
            if status is not None and _key(status) == entry.key:
                continue
            problem = self._put_back(path, entry, status)
            if problem:
                lost.append(f"file {path!a}: {problem}")
        more = len(lost) - _MOST_LOST
        return lost if more <= 0 else [*lost[:_MOST_LOST], f"{more:,} more files"]

    def _before(self, cell: int) -> int:
        return max((number for number in self._kept if number <= cell), default=-1)

    def _remove(self, path: str, status: os.stat_result) -> bool:
        with suppress(OSError):
            folder, name = _place(self._root, path)
            try:
                if stat.S_ISDIR(status.st_mode):
                    os.rmdir(name, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)
            return True
        return False

    def _put_back(self, path: str, entry: Entry, status: os.stat_result | None) -> str:
        same = status is not None and stat.S_IFMT(status.st_mode) == stat.S_IFMT(entry.mode)
        if entry.data is None and not (same and stat.S_ISDIR(entry.mode)):
            return "its content was not kept"
        if status is not None and not (same and not stat.S_ISLNK(entry.mode)):
            self._remove(path, status)
        try:
            folder, name = _place(self._root, path)
            try:
                _write(folder, name, entry)
            finally:
                os.close(folder)
        except OSError as error:
            return error.strerror or "it cannot be written"
        return ""


def _key(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)  # what is in it has keys of its own
    return (
        status.st_mode,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        # Who writes twice within a tick of the clock of files may leave the same times.
        *((now,) if (now := time.time_ns()) - status.st_ctime_ns < _TICK else ()),
    )


def _entry(root: int, path: str, status: os.stat_result, known: Entry | None, room: int) -> Entry:
    key = _key(status)
    if known is not None and known.key == key and len(known.data or b"") <= room:
        return known
    return Entry(status.st_mode, key, status.st_mtime_ns, _content(root, path, status, room))


def _content(root: int, path: str, status: os.stat_result, room: int) -> bytes | None:
    try:
        if stat.S_ISDIR(status.st_mode):
            return b""
        folder, name = _place(root, path)
        try:
            if stat.S_ISLNK(status.st_mode):
                return os.fsencode(os.readlink(name, dir_fd=folder))
            if not stat.S_ISREG(status.st_mode) or status.st_size > room:
                return None
            fd = os.open(name, os.O_RDONLY | workspace.PLAIN, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as file:
            data = file.read(room + 1)
        return data if len(data) <= room else None
    except OSError:
        return None  # gone, or something else by now: a thread of the session is at it


def _write(folder: int, name: str, entry: Entry) -> None:
    assert entry.data is not None
    if stat.S_ISDIR(entry.mode):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        os.chmod(name, stat.S_IMODE(entry.mode) & 0o777, dir_fd=folder)
        return
    if stat.S_ISLNK(entry.mode):
        os.symlink(os.fsdecode(entry.data), name, dir_fd=folder)
        return
    # In place: who has the file open, as the copy that takes over may, has this one.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | workspace.PLAIN
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        rest = memoryview(entry.data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, stat.S_IMODE(entry.mode) & 0o777)
        os.utime(fd, ns=(entry.modified, entry.modified))
    finally:
        os.close(fd)


def _place(root: int, path: str) -> tuple[int, str]:
    """A descriptor of the directory that `path` is in, to be closed, and its name there."""
    *above, name = path.split("/")
    folder = os.dup(root)
    for part in above:
        inner = os.open(part, workspace.PLACE, dir_fd=folder)
        os.close(folder)
        folder = inner
    return folder, name


def _walk(root: int) -> list[tuple[str, os.stat_result]]:
    """Every path below `root`, a directory before what is in it; OSError if there are too many."""
    found: list[tuple[str, os.stat_result]] = []
    left = [""]
    while left:
        above = left.pop()
        parent, name = _place(root, f"{above}.")
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | workspace.PLAIN, dir_fd=parent)
        os.close(parent)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found.append((above + entry.name, status))
                    if stat.S_ISDIR(status.st_mode):
                        left.append(f"{above}{entry.name}/")
                    if len(found) > MOST_FILES:
                        raise OSError(0, f"more than {MOST_FILES:,} files")
        finally:
            os.close(folder)
    return found


# ── the process ───────────────────────────────────────────────────────────────────────────────


def ask(sock: socket.socket | None, request: dict[str, Any]) -> list[str] | None:
    """Init's side: what the keeper answers: names of what was lost, None if it cannot."""
    if sock is None:
        return None
    try:
        _send(sock, request)
        answer: list[str] | None = _receive(sock)
        return answer
    except (OSError, ValueError):  # it is gone, ended by the session's code, or too slow
        return None


def be_keeper(jail: Jail, sock: socket.socket) -> NoReturn:
    """Be the keeper of a session, at the other end of `sock`."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        jail.kept = {0, 1, 2, sock.fileno()}
        contain(jail, RECIPES[jail.tier].clerk)
        versions = Versions(workspace.root(jail))
        while (request := _receive(sock)) is not None:
            try:
                if request["op"] == "keep":
                    versions.keep(request["cell"], request["needed"])
                    _send(sock, [])
                else:
                    _send(sock, versions.restore(request["cell"]))
            except OSError as error:
                _send(sock, [f"files: {error.strerror}"])
    # Boundary: as in be_clerk. Init sees its end, and the files stay as they are.
    except Exception as error:  # noqa: BLE001
        os.write(2, f"the session's keeper failed: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def _send(sock: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def _receive(sock: socket.socket) -> Any:
    head = sock.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    return json.loads(sock.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL))
