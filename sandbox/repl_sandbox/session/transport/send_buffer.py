"""`SendBuffer`: bytes for a worker that its socket does not accept yet.

A hostile worker may stop reading. The host never blocks on it, and while much is unread it reads
nothing from it: a worker gets answers only if it reads them.
"""

from __future__ import annotations

import fcntl
import select
import socket
import termios
from collections.abc import Sequence

# Unread bytes above which nothing more is read from the worker.
_MAX_UNREAD = 1 << 20

_UNREAD = termios.TIOCOUTQ  # SIOCOUTQ: bytes of kernel memory


class SendBuffer:
    """The bytes on their way to one worker. False, not an exception, reports that it is gone."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._unread = bytearray()
        # The events to wait for on the worker's socket; poll(2) and epoll(7) use the same bits.
        self.interest = select.POLLIN

    def __len__(self) -> int:
        """The number of bytes that the socket has not accepted."""
        return len(self._unread)

    def is_read(self) -> bool:
        """Return whether the worker has read all that was sent to it."""
        return not self._unread and not any(fcntl.ioctl(self._worker, _UNREAD, bytes(4)))

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send as much as possible now and keep the rest; return False if the worker is gone.

        `descriptors` need an empty buffer: they travel with the first byte.
        """
        if self._unread:
            self._keep(data)
            return True
        try:
            if descriptors:
                sent = socket.send_fds(self._worker, [data], descriptors)
            else:
                sent = self._worker.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self._keep(data[sent:])
        return True

    def flush(self) -> bool:
        """Send more of the kept bytes; return False if the worker is gone."""
        try:
            del self._unread[: self._worker.send(self._unread)]
        except BlockingIOError:
            return True
        except OSError:
            self._unread.clear()
            return False
        finally:
            self._set_interest()
        return True

    def _keep(self, data: bytes) -> None:
        self._unread += data
        self._set_interest()

    def _set_interest(self) -> None:
        self.interest = select.POLLIN if len(self._unread) < _MAX_UNREAD else 0
        if self._unread:
            self.interest |= select.POLLOUT
