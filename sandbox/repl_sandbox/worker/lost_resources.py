"""`LostResources`: what a snapshot lacks: threads, child processes, tasks, timers, open
descriptors.

Noted when the snapshot is made, reported when it takes over. Memory is copied, and with it the
objects that stand for lost resources. The objects of child processes are updated as if the process
had died by the signal that killed it; thread pools start new threads. A lock that a thread held
stays locked.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import fcntl
import gc
import io
import os
import select
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, SIGKILL, getitimer, set_wakeup_fd
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    ModuleType,
)
from typing import Any, Protocol

from . import evaluation, library_pools
from .imports import import_trusted, loaded, loaded_class
from .namespace import Namespace

# Finds the variables that hold objects of certain descriptors, also deep in containers and
# objects.
#
# No code of the session runs: objects are inspected by methods of C types.

# The most objects to inspect: the process that takes over is waited for.
_MAX_OBJECTS = 100_000
_FILENO_METHODS: tuple[tuple[type, Callable[[Any], int]], ...] = (
    (io.FileIO, io.FileIO.fileno),
    (_socket.socket, _socket.socket.fileno),
    (select.epoll, select.epoll.fileno),
)
# Objects without contents of their own, or that lead to everything.
_PASSED_BY = (
    *(bool, int, float, complex, str, bytes, bytearray, type(None), type),
    *(ModuleType, BuiltinFunctionType, CodeType),
)
# Of a function: its globals lead to all variables.
_OF_FUNCTION: tuple[Callable[[Any], object], ...] = tuple(
    vars(FunctionType)[name].__get__
    for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")
)
_class_dict: Callable[[Any], Mapping[str, object]] = vars(type)["__dict__"].__get__
_get_referents = gc.get_referents


def holders(
    variables: Iterable[tuple[str, object]], numbers: set[int], other: object
) -> tuple[dict[int, str], str]:
    """By number, the first variable that holds an object of this descriptor; likewise for `other`.

    "" for `other` if no variable holds it.
    """
    found: dict[int, str] = {}
    holds_other = ""
    for name, each in _reachable(variables):
        if each is other:
            holds_other = holds_other or name
        elif (fd := _number(each)) in numbers:
            found.setdefault(fd, name)
    return found, holds_other


def _reachable(variables: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Yield each object that a variable leads to, once, with the first variable that does."""
    seen: set[int] = set()
    for name, value in variables:
        waiting = _of_own_class(value) if issubclass(type(value), type) else [value]
        while waiting:
            each = waiting.pop()
            if issubclass(type(each), _PASSED_BY) or id(each) in seen:
                continue
            if len(seen) >= _MAX_OBJECTS:
                return
            seen.add(id(each))
            yield name, each
            waiting += _referents(each)


def _of_own_class(cls: Any) -> list[object]:
    """The attributes of a class that cells have defined; a library's may lead to anything."""
    attributes = _class_dict(cls)
    return list(attributes.values()) if attributes.get("__module__") == "__main__" else []


def _referents(each: object) -> list[Any]:
    if type(each) is FunctionType:
        return [part(each) for part in _OF_FUNCTION]
    return _get_referents(each)


def _number(each: object) -> int:
    """The descriptor of an object that has one, -1 of any other."""
    kind = type(each)
    try:
        for cls, fileno in _FILENO_METHODS:
            if issubclass(kind, cls):
                return fileno(each)
        connection = loaded_class("multiprocessing.connection", "Connection")
        if connection is not None and issubclass(kind, connection):
            handle = each.__dict__.get("_handle")
            return handle if type(handle) is int else -1
    except (AttributeError, TypeError, ValueError):  # closed, or made unusable by the code
        pass
    return -1


# The descriptors of a process and of its waiting snapshot.
#
# Open descriptors of a snapshot would have effects: the reader of a pipe would wait for a hidden
# writer, a lock on a file would outlive its file. So a snapshot closes all descriptors of its
# worker. When it takes over, it opens files again by their paths, at their last positions; pipes,
# sockets and the like have another end, which lives on or is gone, and are lost. A placeholder
# keeps their numbers.

_FOLDER = "/proc/self/fd"
# Taken once: code may replace those of the modules, and would lose its state.
_stat = os.stat
_fstat = os.fstat
_lseek = os.lseek
_readlink = os.readlink
_open = os.open
_close = os.close
_dup2 = os.dup2
_get_inheritable = os.get_inheritable
_listdir, _sysconf, _fcntl = os.listdir, os.sysconf, fcntl.fcntl
_ONLY_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_TMPFILE
_BY_PATH = frozenset((stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR))
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a terminal"}
_STREAMS = (0, 1, 2)
# Major numbers of terminals (admin-guide/devices.txt), which have another end, too.
_TERMINALS = frozenset((4, 5, *range(136, 144)))

_PIECE = 1 << 20
# The marks of databases whose libraries keep the path, at their places in the file.
_DATABASES = (
    (0, b"SQLite format 3\0", "sqlite"),
    (8, b"DUCK", "duckdb"),
    (16, b"\xde\xc0\xef\xbe", "lmdb"),
)
_HEAD = 32

Identity = tuple[int, int]


class FileCopies(Protocol):
    """The directories of a branch, as of `BranchDirectories`."""

    @property
    def temporary(self) -> tuple[str, str]:
        """The directory of temporary files that the branch leaves, and its own."""

    def moved(self, path: str) -> str:
        """Return the path of the copy of `path`; `path` itself if there is none."""


@dataclass(frozen=True, slots=True)
class RestoredDirectory:
    """The directory whose files are restored with a session's state: a path in it stays valid.

    `copies`: of a branch that was just forked.
    """

    workspace: str
    copies: FileCopies | None = None

    def find(self, path: str) -> tuple[str, bool]:
        """Return the present path of the file `path`, and whether that file was restored."""
        if self.copies is not None:
            copy = self.copies.moved(path)
            return copy, copy != path
        return path, f"{path}/".startswith(f"{self.workspace}/")


@dataclass(frozen=True, slots=True)
class OpenDescriptor:
    """One open descriptor.

    `kind` is its file's, as stat.S_IFMT; `path` "" if none leads there; `file` its device and
    inode. `stream`: the standard stream that it is a duplicate of, -1 for none. `reopens`: whether
    a snapshot can open it again.
    """

    fd: int
    kind: int
    path: str
    flags: int
    offset: int
    inheritable: bool
    file: Identity
    stream: int
    reopens: bool

    def release(self) -> None:
        """Close it, unless the snapshot keeps it, because nothing else leads to a file without a
        name.

        Likewise where the kernel does not report the name.
        """
        if self.path or not self.reopens or self.stream >= 0:
            self.close()

    def close(self) -> None:
        """Close the descriptor, unless it is closed already."""
        with contextlib.suppress(OSError):
            _close(self.fd)

    @property
    def name(self) -> str:
        """The name of a descriptor that is lost because of its kind."""
        return f"descriptor {self.fd}, {_KINDS.get(self.kind, 'of the kernel')}"

    def reopen(self, directory: RestoredDirectory) -> str:
        """Open one that `reopens` again, as it was; return its name if that fails, else ""."""
        try:
            if self.stream >= 0:
                _dup2(self.stream, self.fd, self.inheritable)
            elif self.path:
                self._open(*directory.find(self.path))
            elif directory.copies is not None and self.kind == stat.S_IFREG:
                self._open_copy(directory.copies.temporary[1])
            if self.kind == stat.S_IFREG and not self.flags & os.O_PATH:
                _lseek(self.fd, self.offset, os.SEEK_SET)
        except OSError as error:
            # People read it: a name that the code chose may contain terminal control sequences.
            name = self.path if self.path.isprintable() else repr(self.path)
            return f"descriptor {self.fd}, {name or 'a file'}: {error.strerror}"
        return ""

    @property
    def database(self) -> str:
        """A database in this file, which a library has open by its path; "" for none."""
        if self.kind != stat.S_IFREG or not self.path or self.flags & (os.O_PATH | os.O_WRONLY):
            return ""
        head = b""
        with contextlib.suppress(OSError):
            head = os.pread(self.fd, _HEAD, 0)
        return next((name for at, mark, name in _DATABASES if head[at:].startswith(mark)), "")

    def _open_copy(self, folder: str) -> None:
        """Open a copy of the file, which has no name, made in `folder`."""
        path = f"{folder}/.{os.urandom(8).hex()}"
        source = _open(f"{_FOLDER}/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _close(_open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            target = _open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                while piece := os.read(source, _PIECE):
                    while piece:
                        piece = piece[os.write(target, piece) :]
            finally:
                _close(target)
            self._open(path, restored=True)
        finally:
            _close(source)
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _open(self, path: str, restored: bool) -> None:
        fd = _open(path, self.flags & ~_ONLY_ONCE | os.O_CLOEXEC)
        try:
            if not restored and _identity(_fstat(fd)) != self.file:
                raise OSError(errno.ESTALE, "another file has that name")
            if fd != self.fd:
                _dup2(fd, self.fd, self.inheritable)
        finally:
            if fd != self.fd:
                _close(fd)


def find_open(excluded: Collection[int]) -> list[OpenDescriptor]:
    """The open descriptors of this process, except those of `excluded`, which are distinct."""
    if _are_all_open(excluded):
        return []
    numbers = _open_numbers().difference(excluded)
    if not numbers:
        return []
    found, streams = [], _stream_identities()
    for fd in sorted(numbers):
        with contextlib.suppress(OSError):  # closed by now: the descriptor of the listing itself
            found.append(_inspect(fd, streams))
    return found


def _are_all_open(expected: Collection[int]) -> bool:
    """Return whether these and no others are open; False also where that would need a look at each.

    Since Linux 6.2 the size of the directory is their number. Listing it takes eight times as long.
    """
    try:
        if _stat(_FOLDER).st_size != len(expected):
            return False
        for fd in expected:
            _get_inheritable(fd)
    except OSError:
        return False
    return True


def _inspect(fd: int, streams: Sequence[Identity]) -> OpenDescriptor:
    status = _fstat(fd)
    kind, file = stat.S_IFMT(status.st_mode), _identity(status)
    flags = _fcntl(fd, fcntl.F_GETFL)
    path, offset = "", 0
    stream = streams.index(file) if kind == stat.S_IFIFO and file in streams else -1
    terminal = kind == stat.S_IFCHR and os.major(status.st_rdev) in _TERMINALS
    reopens = stream >= 0 or (kind in _BY_PATH and not terminal)
    if reopens and status.st_nlink and stream < 0:
        with contextlib.suppress(OSError):
            path = _readlink(f"{_FOLDER}/{fd}")
    if kind == stat.S_IFREG and not flags & os.O_PATH:
        offset = _lseek(fd, 0, os.SEEK_CUR)
    return OpenDescriptor(
        fd, kind, path, flags, offset, _get_inheritable(fd), file, stream, reopens
    )


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _stream_identities() -> list[Identity]:
    """The identities of the files of the standard streams; none of a closed one."""
    found: list[Identity] = []
    for fd in _STREAMS:
        try:
            found.append(_identity(_fstat(fd)))
        except OSError:
            found.append((-1, -1))
    return found


def _open_numbers() -> set[int]:
    try:
        return set(map(int, _listdir(_FOLDER)))
    except OSError:
        # Unreadable in tier "confined" for a process that took over, because the Landlock rules
        # name the directory of the first worker. poll(2) reports the numbers that are not open.
        limit = _sysconf("SC_OPEN_MAX")
        poller = select.poll()
        for fd in range(limit):
            poller.register(fd, 0)
        closed = {fd for fd, event in poller.poll(0) if event & select.POLLNVAL}
        return set(range(limit)) - closed


# Placeholders, which keep the number of a lost descriptor from being reused.
#
# A copied object has its descriptor's number. If that were free, the next `open` would get it,
# and the object would write into that file, or close it when it is collected.
#
# A placeholder is an O_PATH descriptor of a symbolic link: reading, writing, mapping, polling or
# locking it is EBADF, as for a closed one, nothing can be opened through it, and no process waits
# for its end. The object that has the number closes the placeholder as it would have closed its
# file; then the number is free.

_LINK = "/proc/self"
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def place_placeholders(numbers: Collection[int]) -> None:
    """Put a placeholder at each of `numbers`, in place of what is open there.

    Raises:
        OSError: there is no number left for one more descriptor, or no /proc.
    """
    if not numbers:
        return
    first = _open(_LINK, _FLAGS)
    for fd in numbers:
        if fd != first:
            _keep(first, fd)
    if first not in numbers:
        _close(first)


def _keep(placeholder: int, fd: int) -> None:
    try:
        _dup2(placeholder, fd, inheritable=False)
    except OSError as error:
        if error.errno != errno.EBADF:  # the limit is below it, so nothing else gets it either
            raise


def still_placeholders(numbers: Iterable[int]) -> set[int]:
    """The `numbers` that still have the placeholder."""
    return {fd for fd in numbers if _is_link(fd)}


def _is_link(fd: int) -> bool:
    try:
        return stat.S_ISLNK(_fstat(fd).st_mode)
    except OSError:
        return False


# So many of each kind are named, the rest counted.
_MAX_NAMED = 20
_LONGEST = 100  # characters of a variable's name
# Classes of child process objects, and the attribute that holds the exit status.
_PROCESSES = (("subprocess", "Popen"), ("multiprocessing.popen_fork", "Popen"))
# Descriptors of a process that has taken over: standard streams, two sockets, and one for opening
# files.
_NEEDED = 6
_get_objects = gc.get_objects
_TIMERS = ((ITIMER_REAL, "real"), (ITIMER_VIRTUAL, "virtual"), (ITIMER_PROF, "profiling"))


@dataclass(slots=True)
class LostResources:
    """The losses of a snapshot made now."""

    descriptors: list[OpenDescriptor]
    names: list[str] = field(default_factory=list)
    generator: object = None  # state of `random`, which a fork of a process with threads reseeds
    threads: bool = False  # whether there are others than this one
    native: list[str] = field(default_factory=list)  # as of `library_pools.lost_threads`

    def fits(self, numbers: int, limit: int, reserved: int) -> bool:
        """Return whether a snapshot can take over: with `limit` numbers for descriptors, as many as
        `reserved` of which have placeholders already, and the code with `numbers` of them.

        A quarter of these is not for lost descriptors: the code will open files again.
        """
        lost = reserved + sum(not descriptor.reopens for descriptor in self.descriptors)
        return (
            lost <= numbers - numbers // 4 and _NEEDED + reserved + len(self.descriptors) <= limit
        )

    def release(self) -> None:
        """In the snapshot: close everything that others could notice."""
        for descriptor in self.descriptors:
            descriptor.release()

    def predict(self, namespace: Namespace) -> list[str] | None:
        """Return the names that `restore` will report in a snapshot made now; None if only that
        can tell.
        """
        if self.descriptors or namespace.loop is not None:
            return None
        try:
            os.getcwd()
        except OSError:
            return None
        ended = [name for _, name in _children()]
        return [*self.names, *_shorten(ended, "child processes")]

    def restore(
        self, namespace: Namespace, directory: RestoredDirectory, reserved: set[int]
    ) -> tuple[list[str], set[int]]:
        """In the snapshot that takes over: open files again; return the names of all losses.

        And the numbers that placeholders keep from here on, those that were `reserved` before among
        them.

        Raises:
            OSError: they cannot be kept.
        """
        lost = {
            descriptor.fd: descriptor.name
            for descriptor in self.descriptors
            if not descriptor.reopens
        }
        place_placeholders({*reserved, *lost})
        for descriptor in self.descriptors:
            if descriptor.reopens and (name := descriptor.reopen(directory)):
                lost[descriptor.fd] = name
                place_placeholders([descriptor.fd])
        library_pools.restart(self.native, threads=self.threads)
        placed = still_placeholders(lost)  # but those of pools that begin anew
        lost = {fd: name for fd, name in lost.items() if fd in placed}
        reserved = {*reserved, *lost}
        if (wakeup := set_wakeup_fd(-1)) not in lost:
            with suppress(OSError, ValueError):  # it was closed, or is of another kind by now
                set_wakeup_fd(wakeup)
        for fd in _loop_descriptors(namespace.loop):  # no loss: it is replaced
            lost.pop(fd, None)
        names = _named(lost, namespace)
        if directory.copies is not None:
            names += self._databases(directory)
        try:
            os.getcwd()
        except OSError:
            os.chdir(os.environ.get("HOME", directory.workspace))
            names.append("the working directory, which is gone")
        names += [*self.names, *_shorten(_end_children(), "child processes")]
        _reset_thread_pools()
        if namespace.loop is not None:
            names += _shorten(evaluation.replace_loop(namespace), "tasks")
        if self.generator is not None:
            import_trusted("random").setstate(self.generator)
        return names, still_placeholders(reserved)

    def _databases(self, directory: RestoredDirectory) -> list[str]:
        """In a branch: name the databases whose libraries still have the original's path."""
        found = {
            (kind, descriptor.path): directory.find(descriptor.path)[0]
            for descriptor in self.descriptors
            if (kind := descriptor.database)
        }
        names = [
            f"{kind} database {path!a}, which is open: open {copy!a}, a copy"
            for (kind, path), copy in found.items()
        ]
        return _shorten(names, "databases")


def find(own: Collection[int], *, threads: bool) -> LostResources:
    """Return the resources of this process; `import_trusted` are the worker's descriptors, not the
    session's.
    """
    found = LostResources(find_open(own))
    if threads:
        python = _threads()
        found.threads = True
        found.native = library_pools.lost_threads({number for number, _ in python})
        names = [name for _, name in python] + library_pools.describe(found.native)
        found.names += _shorten(names, "threads")
        random = loaded("random")
        if random is not None:
            found.generator = random.getstate()
    if gone := library_pools.gone():
        found.names += library_pools.describe(name for name in gone if name not in found.native)
    for timer, name in _TIMERS:
        if getitimer(timer)[0]:
            found.names.append(f"the {name} timer")
    return found


def _shorten(names: list[str], noun: str) -> list[str]:
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more {noun}"]


def _named(lost: dict[int, str], namespace: Namespace) -> list[str]:
    """The names of lost descriptors, with the variables that hold their objects.

    And the name of one that holds the event loop which is to be replaced.
    """
    if not lost and namespace.loop is None:
        return []
    held, of_loop = holders(namespace.variables(), set(lost), namespace.loop)
    names = [
        f"{lost[fd]}, which {held[fd][:_LONGEST]!a} holds" if fd in held else lost[fd]
        for fd in sorted(lost)
    ]
    names = _shorten(names, "descriptors")
    if of_loop:
        names.append(
            f"the event loop that {of_loop[:_LONGEST]!a} holds, which is closed: there is another"
        )
    return names


def _threads() -> list[tuple[int, str]]:
    """The threads that Python knows, but the main one: the kernel's number of each, and a name."""
    threading = loaded("threading")
    if threading is None:
        return [(0, "threads of C code")]
    main = threading.main_thread()
    return [(t.native_id, f"thread {t.name!a}") for t in threading.enumerate() if t is not main]


def _end_children() -> list[str]:
    """Set the exit status of child process objects, which would otherwise find no process."""
    ended = []
    for found, name in _children():
        found.__dict__["returncode"] = -SIGKILL
        ended.append(name)
    _adopt_processes()
    return ended


def _children() -> list[tuple[Any, str]]:
    """The objects of living child processes, and their names."""
    kinds = tuple(kind for names in _PROCESSES if (kind := loaded_class(*names)))
    return [
        (found, f"child process {found.__dict__.get('pid')}, which was ended")
        for found in (_get_objects() if kinds else ())
        if issubclass(type(found), kinds) and found.__dict__.get("returncode", 0) is None
    ]


def _adopt_processes() -> None:
    """Let objects of multiprocessing be queried, which only answer the process that made them."""
    kind = loaded_class("multiprocessing.process", "BaseProcess")
    if kind is None:
        return
    own_pid = os.getpid()
    for found in _get_objects():
        if issubclass(type(found), kind) and found.__dict__.get("_popen") is not None:
            found.__dict__["_parent_pid"] = own_pid


def _reset_thread_pools() -> None:
    """Let thread pools start threads: those that they count as idle are gone."""
    kind = loaded_class("concurrent.futures.thread", "ThreadPoolExecutor")
    semaphore = loaded_class("threading", "Semaphore")
    if kind is None or semaphore is None:
        return
    for found in _get_objects():
        if issubclass(type(found), kind):
            found.__dict__["_threads"] = set()
            found.__dict__["_idle_semaphore"] = semaphore(0)


def _loop_descriptors(loop: Any) -> set[int]:
    """The descriptors of the loop itself."""
    numbers: set[int] = set()
    if loop is None:
        return numbers
    for name in ("_selector", "_ssock", "_csock"):
        with suppress(AttributeError, OSError, ValueError):  # none, or closed
            numbers.add(getattr(loop, name).fileno())
    return numbers
