"""The worker's end of its socket, for all threads of the session.

The worker owns no thread. Whichever thread waits first reads for all (leader), the others wait to
be handed what is theirs (followers); so a copy of the process is always one of a single thread.
"""

from __future__ import annotations

import _thread
import array
import errno
import os
import select
import socket
import threading
from collections import deque

from ..protocol.connection import WorkerConnection
from ..protocol.message_order import ProtocolPhase
from ..protocol.messages import Answered, HostCall, HostMessage, HostReply, WorkerMessage
from .interrupts import Interrupts

# As large as a socket buffer usually is: fewer reads for a large cell, no cost for a small one.
_CHUNK = 1 << 16
_get_ident = _thread.get_ident
_thread_count = _thread._count  # as the tests of threading use it
_SOL_SOCKET, _SCM_RIGHTS = socket.SOL_SOCKET, socket.SCM_RIGHTS
_CUT = int(socket.MSG_CTRUNC)  # `&` with a member of an enum runs five functions, in each step
_FD_SPACE = socket.CMSG_SPACE(2 * array.array("i").itemsize)  # standard output and error


class _Beginning:
    """What a conversation begins with.

    The worker's second one has it from the template: a copy that takes over, and a branch, would
    write to some twenty pages more to make it.
    """

    def __init__(self) -> None:
        self.connection = WorkerConnection()
        self.poller = select.poll()
        # Of its own: a signal handler that comes in this wait may ask the host, and wait as well.
        self.command_poller = select.poll()
        # Taken as it is: the condition does so in Python, where an interrupt can come between, and
        # leave it taken for good.
        self.lock = threading.Lock()
        self.turn = threading.Condition(self.lock)
        self.sending = threading.Lock()
        self.commands: deque[HostMessage] = deque()
        self.replies: dict[int, HostReply] = {}
        self.awaited: set[int] = set()
        self.descriptors: deque[int] = deque()


class WorkerChannel:
    """Sends messages and waits for commands and replies. `Disconnected` when the host is gone.

    Attributes:
        polls: whether it waits for commands in poll(2), not in recvmsg(2).
    """

    _socket: socket.socket
    _main: int

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.polls = False
        self._next: _Beginning | None = None
        self.renew()
        self._next = _Beginning()

    def renew(self) -> None:
        """Begin anew, as if nothing had been said: what was under way is another process's.

        So is the socket, whose number may be another descriptor's by now.
        """
        if hasattr(self, "_socket"):
            self._socket.detach()
            del self._socket
        beginning, self._next = self._next or _Beginning(), None
        self._connection = beginning.connection
        self.said_of_nothing = self._connection.empty_result
        self._poller = beginning.poller
        self._command_poller = beginning.command_poller
        self._lock, self._turn = beginning.lock, beginning.turn
        self._sending = beginning.sending
        self._leading = 0  # who reads for all: of a call its number and one, else below 0
        self._commands = beginning.commands
        self._replies = beginning.replies
        self._awaited = beginning.awaited
        self._descriptors = beginning.descriptors

    def open(self, fd: int) -> None:
        """Speak over the socket `fd` from now on."""
        if hasattr(self, "_socket"):
            self.renew()
        # Named, so that the kernel need not be asked what it is.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._socket, self._recv, self._recvmsg = sock, sock.recv, sock.recvmsg
        self._main = _get_ident()
        self._poller.register(sock, select.POLLIN)
        self._command_poller.register(sock, select.POLLIN)

    def close(self) -> None:
        """Let go of the socket: this process is a child that the session's code forked."""
        self._socket.close()

    def waits(self, milliseconds: int) -> bool:
        """Whether the host says something within that time. Only the main thread, between cells."""
        return bool(self._commands or self._poller.poll(milliseconds))

    @property
    def idle(self) -> bool:
        """Whether nothing that the host asked for is under way."""
        return self._connection.phase is ProtocolPhase.IDLE

    def send(self, message: WorkerMessage, *, after: bytes = b"") -> None:
        """Send one message whole, `after` what was `said`."""
        main = _get_ident() == self._main
        with self._sending:
            if main:
                self._interrupts.hold()
            try:
                self._socket.sendall(after + self._connection.send(message))
            except OSError as error:
                raise _told_by(error) from None
            finally:
                if main:
                    self._interrupts.allow()

    def said(self, message: WorkerMessage) -> bytes:
        """What says `message`, for who sends it otherwise."""
        return self._connection.send(message)

    def end_cell(self, result: bytes) -> None:
        """Send the result of a cell, which was `said`; the main thread, between cells."""
        try:
            if _thread_count() == 0:  # then nobody else is sending
                self._socket.sendall(result)
            else:
                with self._sending:
                    self._socket.sendall(result)
        except OSError as error:
            raise _told_by(error) from None

    def next_command(self) -> HostMessage | tuple[int, bytes]:
        """Wait for what the host wants next; a cell may come as its number and code.

        Only the main thread, between cells, asks.
        """
        # With no other thread there is nobody to share the lead with.
        try:
            while self._is_alone():
                if self.polls:
                    self._command_poller.poll()
                # No descriptor can come here: one is sent only to who asked for it.
                data = self._recv(_CHUNK)
                cell = self._connection.cell(data)
                if cell is not None:
                    return cell
                self._take(data)
        except OSError as error:
            raise _told_by(error) from None
        while True:
            with self._lock:
                if self._commands:
                    return self._commands.popleft()
                if self._leading:
                    self._turn.wait()
                    continue
                self._leading = -1
            self._lead()

    def _is_alone(self) -> bool:
        """Whether the main thread is the only one, and nothing has come that it has not taken."""
        return _thread_count() == 0 and not self._leading and not self._commands

    def next_descriptor(self) -> int:
        """The descriptor that came with the reply just taken.

        OSError if there was no number left for it: the session's code has as many as it may open.
        """
        fd = self._descriptors.popleft()
        if fd < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fd

    def ask(self, message: HostCall | Answered) -> HostReply:
        """Send a call and wait until the host has answered it."""
        call = message.call
        main = _get_ident() == self._main
        # Before it is sent: the thread that reads for all may have the reply before this one is on.
        with self._lock:
            self._awaited.add(call)
        try:
            self.send(message)
            while True:
                with self._lock:
                    if call in self._replies:
                        return self._replies.pop(call)
                    if self._leading:
                        self._turn.wait()
                        continue
                    self._leading = call + 1
                self._lead(interruptible=main)
        finally:
            with self._lock:
                if self._leading == call + 1:
                    # An interrupt came before it read, and nobody else would ever again.
                    self._leading = 0
                    self._turn.notify_all()
                self._awaited.discard(call)
                self._replies.pop(call, None)

    def _lead(self, *, interruptible: bool = False) -> None:
        """Read once, sort what came, and hand the lead on."""
        messages: list[HostMessage] = []
        try:
            if interruptible:
                self._poller.poll()
                self._interrupts.hold()
            messages = list(self._connection.receive(self._read()))
        finally:
            with self._lock:
                self._leading = 0
                self._sort(messages)
                self._turn.notify_all()
            if interruptible:
                self._interrupts.allow()

    def _take(self, data: bytes) -> None:
        """Take in what the socket brought."""
        if not data:
            raise Disconnected
        self._sort(list(self._connection.receive(data)))

    def _sort(self, messages: list[HostMessage]) -> None:
        for message in messages:
            if type(message) is not HostReply:
                self._commands.append(message)
            elif message.call in self._awaited:
                self._replies[message.call] = message

    def _read(self) -> bytes:
        """What the socket brought; descriptors that came with it are kept for `next_descriptor`."""
        try:
            data, ancillary, flags, _ = self._recvmsg(_CHUNK, _FD_SPACE)
        except OSError as error:
            raise _told_by(error) from None
        for level, kind, payload in ancillary:
            if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
                self._descriptors.extend(array.array("i", payload))
        if flags & _CUT:
            self._descriptors.append(-1)  # the kernel has closed it
        if not data:
            raise Disconnected
        return data


def _told_by(error: OSError) -> Exception:
    """What an error while reading or writing says: that the host is gone, as a rule.

    But a signal handler of the session's code may have raised it, as those of alarms often do. The
    socket has no time-out, and its own errors have numbers.
    """
    return error if error.errno is None or type(error) is TimeoutError else Disconnected()


class Disconnected(Exception):
    """The host closed the conversation: the worker's work is over."""
