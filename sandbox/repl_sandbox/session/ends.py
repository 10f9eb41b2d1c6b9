"""The host's ends of what connects it to one line of a session, before the line is there."""

from __future__ import annotations

import mmap
import os
import socket
from contextlib import suppress
from dataclasses import replace

from ..wire.connection import HostConnection
from ..zygote import control
from ..zygote.handle import Links


class Ends:
    """Made for a branch. `theirs`: the descriptors that its init is given, in their order."""

    def __init__(self) -> None:
        self._opened: list[int] = []
        try:
            self._control, their_control = control.pair()
            self._worker, their_worker = socket.socketpair()
            self._opened = [their_control.detach(), their_worker.detach()]
            self._stdout, their_stdout = os.pipe2(os.O_CLOEXEC)
            self._stderr, their_stderr = os.pipe2(os.O_CLOEXEC)
            self._opened += [their_stdout, their_stderr]
            states = os.memfd_create("states", os.MFD_CLOEXEC)
            self._opened.append(states)
            os.truncate(states, mmap.PAGESIZE)
        except OSError:
            self.close_theirs()
            raise
        # The kernel then says who speaks first.
        self._worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for fd in (self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._worker.setblocking(False)
        self._control.setblocking(False)

    @property
    def theirs(self) -> tuple[int, ...]:
        """Control and worker socket, stdout, stderr, the table of copies."""
        return tuple(self._opened)

    def close_theirs(self) -> None:
        """They have been sent."""
        for fd in self._opened:
            os.close(fd)
        self._opened = []

    def close(self) -> None:
        """There will be no line."""
        self.close_theirs()
        self._control.close()
        self._worker.close()
        for fd in (self._stdout, self._stderr):
            with suppress(OSError):
                os.close(fd)

    def links(self, parent: Links) -> Links:
        """Those of a branch of the session that `parent` connects to."""
        parent.family.join()
        return replace(
            parent,
            worker_pid=0,
            control=self._control,
            worker=self._worker,
            stdout=self._stdout,
            stderr=self._stderr,
            connection=HostConnection(),
        )
