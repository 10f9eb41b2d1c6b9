"""`WorkerSockets`: the sockets of a worker to its host and to its init, at high numbers."""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Collection

_STDERR = 2
# Taken once: code may replace those of the modules.
_close, _dup2 = os.close, os.dup2
_get_inheritable, _sysconf = os.get_inheritable, os.sysconf


class WorkerSockets:
    """`host` is the descriptor of the socket to the host, `init` that of `init_socket`."""

    def __init__(self, host: int, init_socket: socket.socket) -> None:
        self.host = host
        self.init_socket: _socket.socket = init_socket
        self.init = init_socket.fileno()

    def is_connected(self) -> bool:
        """Return whether init can be reached.

        Code may have closed that descriptor; then no snapshot can be activated.
        """
        try:
            return not _get_inheritable(self.init)
        except OSError:
            return False

    def close_init(self) -> None:
        """Close the socket to init."""
        self.init_socket.close()

    def replace_init(self, fd: int) -> None:
        """Use `fd` in place of the socket to init, which is closed."""
        _close(self.init_socket.detach())
        self.init = fd

    def move_up(self, host: int, used: Collection[int]) -> None:
        """Move both sockets to the highest possible numbers outside `used`, the host's above.

        `host`: the new socket to the host.
        """
        limit, init = _sysconf("SC_OPEN_MAX"), self.init
        self.init_socket.detach()
        self.host = _move_below(host, limit, {*used, init})
        self.init = _move_below(init, self.host, used)
        # As made in C: `socket` wraps it in Python, which writes to more pages.
        self.init_socket = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.init)


def _move_below(fd: int, limit: int, used: Collection[int]) -> int:
    """Move `fd` to the highest number below `limit` that is not among `used`."""
    for number in range(limit - 1, fd if fd < limit else _STDERR, -1):
        if number not in used:
            try:
                _dup2(fd, number, inheritable=False)
            except OSError:
                continue
            _close(fd)
            return number
    return fd
