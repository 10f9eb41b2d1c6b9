"""`ZygoteRequests`: the host's requests to a zygote, from many threads on one socket, and the
answers.

Requests and answers are numbered; answers come in the order in which the work was done. Of the
waiting callers one reads for all. A caller may leave before its answer comes, by a time-out or
Ctrl-C; the next reader skips a late answer. Only waiting callers read, so a request without a
waiting caller must not be answered: the zygote would block.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from errno import ETOOMANYREFS

from ...errors import SandboxClosed, SandboxError
from ...protocol import control_channel
from .. import spawn_requests


class ZygoteGone(SandboxClosed):
    """The zygote is gone, and so are its sessions."""

    def __init__(self) -> None:
        super().__init__(
            "the zygote is gone, as after an end of its process or its container from outside; "
            "its standard error says why"
        )


class ZygoteRequests:
    """The requests to the zygote at the other end of `sock`, whose time-out holds for each
    request.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._waiting = threading.Condition()
        self._reading = False
        self._over = False
        self._answers: dict[int, bytes | None] = {}  # by the numbers of the requests in progress

    @property
    def seconds(self) -> float:
        """The limit in seconds for an answer."""
        return self._socket.gettimeout() or 0.0

    @property
    def is_over(self) -> bool:
        """True if the zygote has closed its end, or no more requests will be sent."""
        return self._over or _has_hung_up(self._socket)

    def ask(self, number: int, request: bytes, descriptors: Sequence[int] = ()) -> bytes:
        """Send `request`, which has this number, and return the answer.

        Raises:
            ZygoteGone: the zygote is gone.
            SandboxError: it did not answer in time.
        """
        with self._waiting:
            self._answers[number] = None
        try:
            self.send(request, descriptors)
            return self._answer(number)
        finally:
            with self._waiting:
                del self._answers[number]

    def send(self, request: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a request without an answer; raises as `ask`."""
        with self._sending:
            try:
                socket.send_fds(self._socket, [request], descriptors)
            except TimeoutError as error:
                raise self._timeout_error() from error
            except OSError as error:
                # for example after messages of another process of this user
                if error.errno == ETOOMANYREFS:
                    raise SandboxError(f"nothing can be sent to the zygote: {error}") from error
                raise ZygoteGone from error

    def send_unless_gone(self, request: bytes) -> None:
        """Send a request without an answer, if it can be sent."""
        try:
            self._socket.send(request)
        except OSError:
            pass

    def try_send(self, request: bytes) -> bool:
        """Send a request without an answer if that needs no waiting; return whether it was sent."""
        try:
            self._socket.send(request, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    @property
    def can_send(self) -> bool:
        """True if a request can be sent without waiting."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLOUT)
        except ValueError:  # it was closed meanwhile
            return True
        return bool(poller.poll(0))

    def hang_up(self) -> None:
        """Tell the zygote to end, and all waiting callers that it has ended."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Close the socket when no caller waits at it any more."""
        self.hang_up()
        with self._waiting:
            self._waiting.wait_for(lambda: not self._reading)
            self._over = True
            self._waiting.notify_all()
        with self._sending:
            self._socket.close()

    def forked(self) -> None:
        """In a child of the host: close the socket, which stays the host's."""
        self._socket.close()

    def _timeout_error(self) -> SandboxError:
        return SandboxError(f"the zygote did not answer within {self.seconds} s")

    def _answer(self, number: int) -> bytes:
        until = time.monotonic() + self.seconds
        with self._waiting:
            while (answer := self._answers[number]) is None:
                remaining = until - time.monotonic()
                if self._over:
                    raise ZygoteGone
                if remaining <= 0:
                    raise self._timeout_error()
                if self._reading:
                    self._waiting.wait(remaining)
                else:
                    self._read(remaining)
        return answer

    def _read(self, seconds: float) -> None:
        """Read one answer, for any caller. Other callers may come and go meanwhile."""
        self._reading = True
        data: bytes | None = b""
        try:
            self._waiting.release()
            data = _next(self._socket, seconds)
        except OSError:
            pass  # as at end of file
        finally:
            self._waiting.acquire()
            self._reading = False
            self._waiting.notify_all()
        if data:
            number, answer = spawn_requests.read_answer(data)
            if number in self._answers:
                self._answers[number] = answer
        elif data is not None:
            self._over = True


def _has_hung_up(sock: socket.socket) -> bool:
    poller = select.poll()
    try:
        poller.register(sock, 0)
    except ValueError:  # it was closed meanwhile
        return True
    return bool(poller.poll(0))


def _next(sock: socket.socket, seconds: float) -> bytes | None:
    """Return the next message, b"" at the end, None if there was none in `seconds`."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return sock.recv(control_channel.MAX_MESSAGE) if poller.poll(seconds * 1000) else None
