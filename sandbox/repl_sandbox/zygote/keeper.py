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
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ..jail.recipe import RECIPES, Jail, contain
from ..worker.files import MOST_FILES, unsettled
from . import workspace

# Bytes of files: reading so much takes some 30 ms, for which the next cell waits.
BUDGET = 64 << 20
# Of so many are those removed that are too many: a second.
_MOST_REMOVED = 100_000
_MOST_LOST = 20
_LONGEST_NAME = 200  # characters
_FIELDS = 5  # of a key, before what tells it from another of the same tick
_LENGTH = struct.Struct("=I")


class Entry(NamedTuple):
    """What was at a path. `key` tells whether it still is; `data` is None where it is not kept."""

    mode: int
    key: tuple[int, ...]
    modified: int  # nanoseconds
    data: bytes | None

    @property
    def inode(self) -> int:
        """What a regular file shares with its other names; of anything else 0."""
        return self.key[1] if stat.S_ISREG(self.mode) else 0


Version: TypeAlias = dict[str, Entry]


class Versions:
    """The contents of directory `root` after some cells, by number: the `most` latest of them.

    And what there was before the first cell: who goes back to that needs no copy of the worker.
    """

    def __init__(self, root: int, most: int) -> None:
        self._root = root
        self._most = most
        self._mode = os.fstat(root).st_mode
        # Instead of a content, why it could not be kept.
        self._kept: dict[int, Version | str] = {}

    def keep(self, cell: int, needed: list[int]) -> None:
        """Note what is there now as the content after `cell`; forget what no `needed` one has."""
        last = self._kept.get(max(self._kept, default=0), {})
        try:
            self._kept[cell] = self._content({} if isinstance(last, str) else last)
        except OSError as error:
            self._kept[cell] = error.strerror or "they cannot be read"
        latest = sorted({self._before(number) for number in (*needed, cell)})[-self._most :]
        wanted = {self._before(0), *latest}
        self._kept = {number: kept for number, kept in self._kept.items() if number in wanted}

    def _content(self, latest: Version) -> Version:
        room = BUDGET
        version: Version = {}
        for path, status in _walk(self._root, MOST_FILES):
            entry = _entry(self._root, path, status, latest.get(path), room)
            room -= len(entry.data or b"")
            version[path] = entry
        return version

    def restore(self, cell: int) -> list[str]:
        """Make the content what it was after `cell`; names of what could not be."""
        version = self._kept.get(self._before(cell), {})
        self._kept = {number: kept for number, kept in self._kept.items() if number <= cell}
        if isinstance(version, str):
            return [f"files: {version}; they are as the code left them"]
        try:
            opened = self._open_up()
            lost = self._make(version, opened)
        finally:
            _chmod(self._root, self._mode)
        more = len(lost) - _MOST_LOST
        return lost if more <= 0 else [*lost[:_MOST_LOST], f"{more:,} more files"]

    def _open_up(self) -> set[str]:
        """Give this process what it needs of every directory; those of which it had less."""
        _chmod(self._root, self._mode | stat.S_IRWXU)
        opened: set[str] = set()
        for path, status in _walk(self._root, _MOST_REMOVED, opened):
            if stat.S_ISREG(status.st_mode) and not status.st_mode & stat.S_IWUSR:
                _open_up(self._root, path, status.st_mode | stat.S_IWUSR)
        return opened

    def _make(self, version: Version, opened: set[str]) -> list[str]:
        there = dict(_walk(self._root, _MOST_REMOVED))
        lost = [
            f"file {_shown(path)}: cannot be removed"
            for path in sorted(there.keys() - version.keys(), reverse=True)
            if not self._remove(path, there[path])
        ]
        folders = []
        names: dict[int, str] = {}  # of inodes: under which each is as it was
        for path, entry in sorted(version.items()):
            status = there.get(path)
            if status is None or path in opened or not self._is_still(path, entry, status):
                problem = self._put_back(path, entry, status, names.get(entry.inode))
                if problem:
                    lost.append(f"file {_shown(path)}: {problem}")
                    continue
                if stat.S_ISDIR(entry.mode):
                    folders.append((path, entry.mode))
            if entry.inode:
                names.setdefault(entry.inode, path)
        # Last, and the innermost first: what is in them had to be written.
        for path, mode in reversed(folders):
            _open_up(self._root, path, mode)
        return lost

    def _is_still(self, path: str, entry: Entry, status: os.stat_result) -> bool:
        """Whether it is as it was; what is written by a mapping leaves no mark in the key."""
        if not _same(_key(status), entry):
            return False
        if not entry.inode or entry.data is None:
            return True
        return _content(self._root, path, status, BUDGET) == entry.data

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

    def _put_back(
        self, path: str, entry: Entry, status: os.stat_result | None, twin: str | None
    ) -> str:
        """Make `path` what `entry` says, a link to `twin` if there is one; why it cannot be."""
        same = status is not None and stat.S_IFMT(status.st_mode) == stat.S_IFMT(entry.mode)
        if entry.data is None and not twin and not (same and stat.S_ISDIR(entry.mode)):
            return "its content was not kept"
        if status is not None and not (same and not twin and _is_its_own(status, entry)):
            self._remove(path, status)
        try:
            folder, name = _place(self._root, path)
            try:
                if twin:
                    self._link(twin, folder, name)
                else:
                    _write(folder, name, entry)
            finally:
                os.close(folder)
        except OSError as error:
            return error.strerror or "it cannot be written"
        return ""

    def _link(self, twin: str, folder: int, name: str) -> None:
        above, there = _place(self._root, twin)
        try:
            os.link(there, name, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(above)


def _is_its_own(status: os.stat_result, entry: Entry) -> bool:
    """Whether `entry` can be written where it is: a file that came since may be another's too."""
    return stat.S_ISDIR(entry.mode) or (entry.inode == status.st_ino)


def _shown(path: str) -> str:
    """`path` as plain text: of a long one the end, for all that was lost is to be one message."""
    shown = ascii(path)
    return shown if len(shown) <= _LONGEST_NAME else f"...{shown[-_LONGEST_NAME:]}"


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
        *((time.time_ns(),) if status.st_ctime_ns >= unsettled() else ()),
    )


def _same(key: tuple[int, ...], entry: Entry) -> bool:
    """Whether what has `key` is as it was. Without its content, in doubt it is."""
    return key == entry.key or (entry.data is None and key[:_FIELDS] == entry.key[:_FIELDS])


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
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(status.st_size + 1)
        return data if len(data) <= room else None
    except OSError:
        return None  # gone, or something else by now: a thread of the session is at it


def _write(folder: int, name: str, entry: Entry) -> None:
    assert entry.data is not None
    if stat.S_ISDIR(entry.mode):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
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


def _open_up(root: int, path: str, mode: int) -> None:
    """Change the mode of what is at `path`, which is no link."""
    with suppress(OSError):
        folder, name = _place(root, path)
        try:
            fd = os.open(name, os.O_PATH | workspace.PLAIN, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            _chmod(fd, mode)
        finally:
            os.close(fd)


def _chmod(fd: int, mode: int) -> None:
    """fchmod(2), for a descriptor that was opened with O_PATH."""
    with suppress(OSError):
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) & 0o777)


def _walk(root: int, most: int, opened: set[str] | None = None) -> list[tuple[str, os.stat_result]]:
    """Every path below `root`, a directory before what is in it.

    With `opened`, every directory is made one that can be changed; the names of those that could
    not be are added.

    Raises:
        OSError: there are more than `most`, or some too deep, or not to be read.
    """
    found: list[tuple[str, os.stat_result]] = []
    left = [""]
    while left:
        above = left.pop()
        if above.count("/") > workspace.DEEPEST:
            raise OSError(0, f"directories more than {workspace.DEEPEST} deep")
        parent, name = _place(root, f"{above}.")
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | workspace.PLAIN, dir_fd=parent)
        os.close(parent)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    path = above + entry.name
                    found.append((path, status))
                    if stat.S_ISDIR(status.st_mode):
                        left.append(f"{path}/")
                        if opened is not None and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                            _open_up(root, path, status.st_mode | stat.S_IRWXU)
                            opened.add(path)
                    if len(found) > most:
                        raise OSError(0, f"more than {most:,} files")
        finally:
            os.close(folder)
    return found


# ── the process ───────────────────────────────────────────────────────────────────────────────


def ask(sock: socket.socket | None, request: dict[str, Any]) -> bool:
    """Init's side: tell the keeper what to do; whether there is one. `answer` must follow."""
    if sock is None:
        return False
    try:
        _send(sock, request)
    except OSError:  # it is gone, ended by the session's code
        return False
    return True


def answer(sock: socket.socket) -> list[str] | None:
    """Init's side: names of what was lost, None if the keeper cannot say."""
    try:
        names: list[str] | None = _receive(sock)
    except (OSError, ValueError):  # it is gone, or too slow
        return None
    return names


def be_keeper(jail: Jail, sock: socket.socket) -> NoReturn:
    """Be the keeper of a session, at the other end of `sock`."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        jail.kept = {0, 1, 2, sock.fileno()}
        contain(jail, RECIPES[jail.tier].clerk)
        # Of the states kept, of the current one, and of that which it replaces.
        versions = Versions(workspace.root(jail), jail.states + 2)
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
