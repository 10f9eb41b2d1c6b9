"""What workers and copies say to their init, and the orders that it gives them.

All of a line of a session have the same end of one socket. So has its code, which may have said
anything there, or read what was not for it.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import socket
import struct
from typing import Final, NamedTuple, cast

# What a worker says: keep the files, as those after cell number so-and-so, which is answered; or
# the process id of the branch that it has forked, -1 if it could not.
WORD: Final = struct.Struct("=Bq")
KEEP: Final = 0
BRANCHED: Final = 1
KEPT: Final = b"k"
# What init says to a copy, or for a branch to the worker, with the socket to speak on: the pid of
# whom it is for, `SnapshotCommand.cpu_left`, `SnapshotCommand.seed`, and how many bytes follow,
# those of
# `SnapshotCommand.workspace`.
ORDER: Final = struct.Struct("=iiqI")
# With a branch's socket come that of its own copies, their table, and its standard streams.
_BRANCH_DESCRIPTORS: Final = 5
_LONGEST: Final = 4096  # PATH_MAX
_STDERR: Final = 2

_close = os.close  # taken once: code may replace that of the module


class SnapshotCommand(NamedTuple):
    """Be the worker from now on; with a `workspace` have a fork of you be a branch, which is there.

    `cpu_left`: seconds that the session may still use, 0 if not limited. `seed`: of random numbers,
    -1 for none. `descriptors`: the socket to speak on, and what else came with it.
    """

    cpu_left: int
    seed: int
    workspace: str
    descriptors: list[int]

    def close(self) -> None:
        """Let go of the descriptors: it is not followed here."""
        for fd in self.descriptors:
            _close(fd)


def read(orders: _socket.socket, pid: int, *, wait: bool) -> SnapshotCommand | None:
    """Read init's next order, for which to `wait`; None if it is not for process `pid`.

    Raises:
        EOFError: there will be none.
        OSError, ValueError: the session's code has closed the socket, or read the order or a part.
    """
    # The code may have changed that for all who hold the socket.
    orders.setblocking(True)
    flags = 0 if wait else socket.MSG_DONTWAIT
    # Which that function asks for `recvmsg` alone.
    end = cast("socket.socket", orders)
    said, descriptors, _, _ = socket.recv_fds(end, ORDER.size, _BRANCH_DESCRIPTORS, flags)
    order = SnapshotCommand(0, -1, "", descriptors)
    try:
        if not said:
            raise EOFError("init is gone")
        if len(said) < ORDER.size:
            raise ValueError("a part of an order")
        to, cpu_left, seed, length = ORDER.unpack(said)
        if length > _LONGEST:
            raise ValueError("no order")
        workspace = os.fsdecode(orders.recv(length, flags | socket.MSG_WAITALL)) if length else ""
        for index, fd in enumerate(descriptors):
            descriptors[index] = _lifted(fd)
        if to == pid:
            return order._replace(cpu_left=cpu_left, seed=seed, workspace=workspace)
    except BaseException:
        order.close()
        raise
    order.close()
    return None


def _lifted(fd: int) -> int:
    """`fd` at a number that is no standard stream's, which the code may have closed."""
    if fd > _STDERR:
        return fd
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    _close(fd)
    return lifted
