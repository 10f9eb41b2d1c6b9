"""`RendezvousSocket`: a socket in a directory that is mounted into a container, for its zygote to
connect to.

The kernel reports the process that connected, and 0 for a process that this system does not show.
Only this user can enter the directory on the host. The mounted directory lies in it and is open to
every user, so that the container's can connect.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import tempfile
import time

from ...protocol.control_channel import Lifeline

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NAME = "zygote"


def _bind(listener: socket.socket, folder: str) -> None:
    """Bind in `folder`, whose path may be longer than an address can be: unix(7)."""
    way = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{way}/{_NAME}")
    finally:
        os.close(way)


class RendezvousSocket:
    """A context manager, which removes the directory. `shown`: what to mount; `inside`: its path
    there.

    Raises:
        OSError: the directory or the socket cannot be made.
    """

    inside = "/run/repl-env"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="repl-env-meeting-")
        try:
            self.shown = f"{self._folder}/shown"
            os.mkdir(self.shown)
            os.chmod(self.shown, 0o755)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            _bind(self._listener, self.shown)
            os.chmod(f"{self.shown}/{_NAME}", 0o666)
            self._listener.listen(1)
        except BaseException:
            self._remove()
            raise

    @property
    def address(self) -> str:
        """The path of the socket inside."""
        return f"{self.inside}/{_NAME}"

    def await_zygote(self, output: int, seconds: float) -> tuple[Lifeline, int] | None:
        """Return the connected socket and the pid of its peer; None if the container has ended.

        `output`: a descriptor that ends when the container ends. The pid is 0 for a process that
        this one cannot see.

        Raises:
            TimeoutError: nothing connected within `seconds`.
        """
        poller, until = select.poll(), time.monotonic() + seconds
        poller.register(self._listener, select.POLLIN)
        poller.register(output, select.POLLRDHUP)
        ready = [fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)]
        if not ready:
            raise TimeoutError
        if self._listener.fileno() not in ready:
            return None
        accepted, _ = self._listener.accept()
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Lifeline(fileno=accepted.detach()), _CREDENTIALS.unpack(credentials)[0]

    def close(self) -> None:
        """Accept no connections any more."""
        self._listener.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
