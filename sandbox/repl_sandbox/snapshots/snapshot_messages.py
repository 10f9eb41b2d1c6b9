"""The messages of workers and snapshots to their init, and init's commands to them.

All processes of a branch have the same end of one socket. So has its code, which may have sent
anything, or read messages for others.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import socket
import struct
from typing import Final, NamedTuple, cast

# A worker's message: keep the files, as those after that cell number, which is answered; or the
# process id of the branch that it has forked, -1 if it could not.
WORKER_MESSAGE: Final = struct.Struct("=Bq")
KEEP: Final = 0
BRANCHED: Final = 1
KEPT: Final = b"k"
# Init's message to a snapshot, or for a branch to the worker, with the socket to speak on: the pid
# of the addressee, `SnapshotCommand.cpu_left`, `SnapshotCommand.seed`, and the number of following
# bytes, those of `SnapshotCommand.workspace`.
COMMAND: Final = struct.Struct("=iiqI")
# With a branch's socket come that of its own snapshots, their table, and its standard streams.
_BRANCH_DESCRIPTORS: Final = 5
_LONGEST: Final = 4096  # PATH_MAX
_STDERR: Final = 2

_close = os.close  # taken once: code may replace that of the module


class SnapshotCommand(NamedTuple):
    """The command to be the worker from now on; with a `workspace`, to fork a branch that has it.

    `cpu_left`: seconds that the session may still use, 0 if not limited. `seed`: of random numbers,
    -1 for none. `descriptors`: the socket to speak on, and those that came with it.
    """

    cpu_left: int
    seed: int
    workspace: str
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors: another process follows the command."""
        for fd in self.descriptors:
            _close(fd)


def read(init_socket: _socket.socket, pid: int, *, wait: bool) -> SnapshotCommand | None:
    """Read init's next command, perhaps after a `wait`; None if it is not for process `pid`.

    Raises:
        EOFError: there will be none.
        OSError, ValueError: the session's code has closed the socket, or read the command or a
            part.
    """
    # The code may have made the socket non-blocking for all processes that hold it.
    init_socket.setblocking(True)
    flags = 0 if wait else socket.MSG_DONTWAIT
    # That function needs `recvmsg` alone of a socket.
    end = cast("socket.socket", init_socket)
    data, descriptors, _, _ = socket.recv_fds(end, COMMAND.size, _BRANCH_DESCRIPTORS, flags)
    command = SnapshotCommand(0, -1, "", descriptors)
    try:
        if not data:
            raise EOFError("init is gone")
        if len(data) < COMMAND.size:
            raise ValueError("the command is incomplete")
        to, cpu_left, seed, length = COMMAND.unpack(data)
        if length > _LONGEST:
            raise ValueError("the command is invalid")
        workspace = (
            os.fsdecode(init_socket.recv(length, flags | socket.MSG_WAITALL)) if length else ""
        )
        for index, fd in enumerate(descriptors):
            descriptors[index] = _moved_up(fd)
        if to == pid:
            return command._replace(cpu_left=cpu_left, seed=seed, workspace=workspace)
    except BaseException:
        command.close()
        raise
    command.close()
    return None


def _moved_up(fd: int) -> int:
    """Move `fd` to a number that is no standard stream's, which the code may have closed."""
    if fd > _STDERR:
        return fd
    lifted = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    _close(fd)
    return lifted
