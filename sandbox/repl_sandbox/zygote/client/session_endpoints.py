"""`SessionEndpoints`: both ends of the connections to a session or branch, made before it
exists.
"""

from __future__ import annotations

import os
import socket

from ...protocol import control_channel
from ...protocol.stream_mark import mark


class SessionEndpoints:
    """Control and worker socket, stdout, stderr; the host's ends do not block.

    `remote`: the descriptors for init, in their order.

    Raises:
        OSError: this process has no free descriptors.
    """

    def __init__(self) -> None:
        self.remote: list[int] = []
        self._sockets: list[socket.socket] = []
        self._pipes: list[int] = []
        try:
            self._connect(*control_channel.pair())
            self._connect(*socket.socketpair())
            # The kernel then reports the sender of the first message.
            self._sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._pipe(1)
            self._pipe(2)
        except OSError:
            self.close()
            raise

    def _connect(self, local: socket.socket, remote: socket.socket) -> None:
        self._sockets.append(local)
        self.remote.append(remote.detach())
        local.setblocking(False)

    def _pipe(self, stream: int) -> None:
        local, remote = os.pipe2(os.O_CLOEXEC)
        self._pipes.append(local)
        self.remote.append(remote)
        mark(remote, stream)
        os.set_blocking(local, False)

    def take(self) -> tuple[socket.socket, socket.socket, int, int]:
        """Return the host's ends, which the caller owns from here on."""
        (control_end, worker), self._sockets = self._sockets, []
        (stdout, stderr), self._pipes = self._pipes, []
        return control_end, worker, stdout, stderr

    def close_remote(self) -> None:
        """Close the other ends, which have been sent."""
        remote, self.remote = self.remote, []
        for fd in remote:
            os.close(fd)

    def close(self) -> None:
        """Close everything: there will be no session."""
        self.close_remote()
        sockets, self._sockets = self._sockets, []
        pipes, self._pipes = self._pipes, []
        for end in sockets:
            end.close()
        for fd in pipes:
            os.close(fd)


def write_end(fd: int, stream: int) -> int:
    """Return another end to write to the pipe of `stream`, which is read at `fd`.

    Raises:
        OSError: this process has no free descriptors.
    """
    end = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    mark(end, stream)
    return end
