"""The host's ends of what connects it to one line of a session, before the line is there."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from dataclasses import replace

from ..errors import SandboxError
from ..wire.connection import HostConnection
from ..zygote import control
from ..zygote.links import Links

_ONE_PAGE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Ends:
    """Made for a branch. `theirs`: the descriptors that its init is given, in their order.

    Control and worker socket, stdout, stderr, the table of copies.

    Raises:
        SandboxError: this process may open no more descriptors.
    """

    def __init__(self) -> None:
        self.theirs: list[int] = []
        self._ours: list[int] = []
        try:
            self._open()
        except OSError as error:
            self.close()
            raise SandboxError(f"no branch could be connected: {error.strerror}") from error
        for fd in self._ours:
            os.set_blocking(fd, False)

    def _open(self) -> None:
        self._take(tuple(end.detach() for end in control.pair()))
        self._take(tuple(end.detach() for end in socket.socketpair()))
        # The kernel then says who speaks first.
        with socket.socket(fileno=os.dup(self._ours[1])) as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._take(os.pipe2(os.O_CLOEXEC))
        self._take(os.pipe2(os.O_CLOEXEC))
        self.theirs.append(os.memfd_create("states", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.truncate(self.theirs[-1], mmap.PAGESIZE)
        # Init has it mapped, and would end by reading what code has cut off. And memory that is in
        # a file, and mapped by nobody, counts nowhere.
        fcntl.fcntl(self.theirs[-1], fcntl.F_ADD_SEALS, _ONE_PAGE)

    def _take(self, pair: tuple[int, ...]) -> None:
        self._ours.append(pair[0])
        self.theirs.append(pair[1])

    def close_theirs(self) -> None:
        """They have been sent."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def close(self) -> None:
        """There will be no line."""
        self.close_theirs()
        for fd in self._ours:
            os.close(fd)
        self._ours = []

    def links(self, parent: Links) -> Links:
        """Those of a branch of the session that `parent` connects to; they are the caller's now."""
        (control_fd, worker, stdout, stderr), self._ours = self._ours, []
        return replace(
            parent,
            worker_pid=0,
            control=control.open_end(control_fd),
            worker=socket.socket(fileno=worker),
            stdout=stdout,
            stderr=stderr,
            connection=HostConnection(),
        )
