"""`CallReplies`: replies on their way from the threads that ran host functions to the driver."""

from __future__ import annotations

import os
import threading
from collections import deque

from ...protocol.messages import HostReply


class CallReplies:
    """The replies of finished calls, and a descriptor that is readable while there are any.

    A child that the host forks during a cell shares the descriptor, which wakes its parent, and may
    have a copy of the lock that nobody will release: in the child this takes no reply.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: deque[tuple[int, HostReply]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, cell: int, reply: HostReply) -> None:
        """Add a reply for cell number `cell`; called by the thread that ran the function."""
        with self._lock:
            if not self._closed:
                self._done.append((cell, reply))
                os.eventfd_write(self.wake_fd, 1)

    def take(self) -> list[tuple[int, HostReply]]:
        """Return the replies since the last call, each with its cell."""
        if os.getpid() != self._pid:
            return []
        with self._lock:
            try:
                os.eventfd_read(self.wake_fd)
            except BlockingIOError:
                return []
            replies = list(self._done)
            self._done.clear()
            return replies

    def close(self) -> None:
        """Accept no more replies."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.wake_fd)
