"""`SessionDoor`: descriptors that a session may have, and cannot open itself.

A ruleset names files of /proc by process, so it cannot name those of processes to come; and a
socket by path would lead to any socket of the host. So code asks (native/session_door.h), and this
process opens: files about processes of that session, and queues of connections that only that
session can name.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ..jail import processes

# Requests: native/session_door.h.
_OPEN_PROC: Final = 1
_LISTEN: Final = 2
_CONNECT: Final = 3
_LIST_PROC: Final = 4
_MOST_LISTED: Final = 1024  # their numbers are fewer bytes than any pipe holds

# Files below /proc/PID, for processes of the session. Others of the directory tell of the host, as
# `mounts`, `net` and `ns` do, or write.
PROC_FILES: Final = {
    "auxv": "what exec passed: features of the processor",
    "cgroup": "duckdb and joblib look for limits; a container's name is in it",
    "cmdline": "psutil, multiprocessing's tools",
    "comm": "names of threads",
    "environ": "psutil",
    "fd": "subprocess closes descriptors by this list",
    "fdinfo": "positions of own descriptors",
    "io": "psutil: bytes read and written",
    "limits": "programs look for their own",
    "maps": "threadpoolctl, debuggers: loaded libraries",
    "oom_score": "monitors of memory",
    "schedstat": "time that was waited for a processor",
    "smaps": "psutil: memory, exactly",
    "smaps_rollup": "psutil: memory, exactly",
    "stat": "psutil: usage",
    "statm": "psutil: memory",
    "status": "memory, threads, uids",
    "task": "psutil: threads",
}
# Queues of a session at once; each takes a descriptor here.
_MAX_QUEUES: Final = 32
# Bytes for connections that wait in a queue: some twenty, like the usual backlog.
_BACKLOG: Final = 16_384
_DEEPEST: Final = 10_000  # processes between init and one of the session
_NAME: Final = struct.Struct("=QQ")


class Request(NamedTuple):
    """What one dup(2) asks for; `a` and `b` are the two words of a name."""

    kind: int
    number: int
    a: int
    b: int


class SessionDoor:
    """Answers the requests of one session, whose processes are below `init` and have `uid`."""

    def __init__(self, init: int, uid: int) -> None:
        self._init, self._uid = init, uid
        self._queues: dict[int, socket.socket] = {}  # by the number that the session gave

    def answer(self, request: Request) -> int:
        """Return a new descriptor for the session.

        Raises:
            OSError: the errno is the session's answer.
        """
        if request.kind == _OPEN_PROC:
            return self._open_proc(request.number, request.a, request.b)
        if request.kind == _LISTEN:
            return self._listen(request.number)
        if request.kind == _CONNECT:
            return self._connect(request.number)
        if request.kind == _LIST_PROC:
            return self._list_proc()
        raise OSError(errno.EBADF, "no such request")

    def close(self) -> None:
        """Close all queues."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()

    # ── files of /proc ────────────────────────────────────────────────────────────────────────

    def _open_proc(self, pid: int, *words: int) -> int:
        name = _NAME.pack(*words).rstrip(b"\0").decode("latin-1")
        if name not in PROC_FILES or not 0 < pid < 1 << 31:
            raise OSError(errno.ENOENT, name)
        with _closing(os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY)) as folder:
            ancestors = self._ancestors(folder)
            with _acting_as(self._uid):
                opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            # The folder is that process's even if its number has been given again meanwhile; those
            # of its ancestors may have been, and then it would have other ones now.
            if ancestors != self._ancestors(folder):
                os.close(opened)
                raise OSError(errno.ENOENT, name)
            return opened

    def _list_proc(self) -> int:
        """Return a pipe with the numbers of the session's processes."""
        pids = [pid for pid in processes.descendants(self._init) if pid != self._init]
        read, write = os.pipe2(os.O_CLOEXEC)
        os.write(write, struct.pack(f"={min(len(pids), _MOST_LISTED)}I", *pids[:_MOST_LISTED]))
        os.close(write)
        return read

    def _ancestors(self, folder: int) -> list[int]:
        """Return the processes above that of `folder`, up to init.

        Raises:
            FileNotFoundError: init is not above it.
        """
        found = [_parent("stat", folder)]
        while found[-1] != self._init:
            if found[-1] <= 1 or len(found) > _DEEPEST:
                raise OSError(errno.ENOENT, "no process of the session")
            found.append(_parent(f"/proc/{found[-1]}/stat"))
        return found

    # ── sockets by path ───────────────────────────────────────────────────────────────────────

    def _listen(self, number: int) -> int:
        """Return the end of a new queue from which the session accepts connections."""
        if len(self._queues) >= _MAX_QUEUES or number in self._queues:
            self._forget_closed()
        if number in self._queues:
            raise OSError(errno.EADDRINUSE, "the number is in use")
        if len(self._queues) >= _MAX_QUEUES:
            raise OSError(errno.ENFILE, "too many queues")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # a session that accepts nothing must not hold up the others
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BACKLOG)
        self._queues[number] = ours
        return theirs.detach()

    def _connect(self, number: int) -> int:
        """Return one end of a new connection, and put the other one into the queue."""
        queue = self._queues.get(number)
        if queue is None:
            raise OSError(errno.ECONNREFUSED, "no such queue")
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(queue, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                if error.errno != errno.EAGAIN:  # nobody has the other end any more
                    self._queues.pop(number).close()
                raise OSError(errno.ECONNREFUSED, "the queue is closed or full") from error
        return ours.detach()

    def _forget_closed(self) -> None:
        poller = select.poll()
        by_fd = {queue.fileno(): number for number, queue in self._queues.items()}
        for fd in by_fd:
            poller.register(fd, 0)
        for fd, _ in poller.poll(0):  # of those whose other end is closed
            self._queues.pop(by_fd[fd]).close()


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _acting_as(uid: int) -> Iterator[None]:
    """Open with the rights of user and group `uid`, where this process is root.

    The kernel shows some files to a process of the same user and group only, and nothing that a
    session could not see itself may be opened for it by mistake.
    """
    if os.getuid() or not uid:
        yield
        return
    os.setresgid(-1, uid, -1)
    os.setresuid(-1, uid, -1)
    try:
        yield
    finally:
        os.setresuid(-1, 0, -1)
        os.setresgid(-1, 0, -1)


def _parent(path: str, folder: int | None = None) -> int:
    """Return the parent in a file `stat` of /proc, 0 if the process is gone."""
    try:
        with _closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)) as file:
            # Behind the name, which may contain anything, also parentheses.
            return int(os.read(file, 4096).rpartition(b")")[2].split()[1])
    except OSError:
        return 0
