"""The worker's end of its socket, for all threads of the session; interrupts of cells."""

from __future__ import annotations

import _signal as signal  # without the enums that the public module wraps around each call
import _thread
import array
import errno
import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType

from ..protocol.connection import ProtocolPhase, WorkerConnection
from ..protocol.messages import Answered, HostCall, HostMessage, HostReply, WorkerMessage
from .namespace import as_builtin

# Delivery of SIGINT as KeyboardInterrupt: only in the running cell, never during protocol I/O.
#
# An exception between reading bytes and keeping them would corrupt the stream, so the worker
# defers interrupts around such sections. Signal handlers run in the main thread only, as cells
# do.
#
# A SIGINT that arrives while no cell runs was late for the last cell, or is early for the next
# one, which the worker has not begun: the worker may be forking a snapshot of a large session, or
# may be waiting for a processor.

_getsignal, _signal, _SIGINT = signal.getsignal, signal.signal, signal.SIGINT
_PYTHONS_OWN = signal.default_int_handler


class Interrupts:
    """SIGINT handler of a worker. While `armed`, a SIGINT raises.

    `target_cell` returns the cell that the last interrupt was for; without it, early interrupts are
    dropped.
    """

    def __init__(self) -> None:
        self.armed = False
        self._deferred = False
        self._pending = False
        self._arrived_early = False  # a SIGINT arrived while unarmed
        self.target_cell: Callable[[], int] | None = None
        self._cell = 0
        self._handler = _default_handler(self._handle)

    def replace_default(self) -> None:
        """Show the handler to code as Python's own, which is the default of SIGINT everywhere.

        Code that puts the default back puts back a handler that defers interrupts.
        """
        for module in (signal, sys.modules["signal"]):
            vars(module)["default_int_handler"] = self._handler

    def arm(self, cell: int = 0) -> None:
        """Let SIGINT raise from here on; the last cell may have installed its own handler.

        A SIGINT that arrived early for `cell` raises at once.
        """
        if _getsignal(_SIGINT) is not self._handler:
            _signal(_SIGINT, self._handler)
            self._arrived_early = (
                True  # possibly: another handler got it, or before the first cell no handler
            )
        # A signal handler of the session's code that raised may have left interrupts deferred.
        self._deferred = False
        if self._pending:
            self._arrived_early, self._pending = True, False
        self._cell = cell
        self.armed = True
        if self._arrived_early and cell:
            self._arrived_early = False
            if self.target_cell is not None and self.target_cell() == cell:
                raise KeyboardInterrupt

    def hold(self) -> None:
        """Defer interrupts during a section that must not be torn."""
        self._deferred = True

    def allow(self) -> None:
        """Raise the deferred interrupt, if there is one, and stop deferring."""
        self._deferred = False
        if self._pending:
            self._pending = False
            if self.armed:
                raise KeyboardInterrupt
            self._arrived_early = True

    def ends_cell(self) -> bool:
        """Return whether the last interrupt was meant for the running cell, by the host."""
        return (
            self.armed
            and self._cell != 0
            and self.target_cell is not None
            and self.target_cell() == self._cell
        )

    def _handle(self) -> None:
        if self._deferred:
            self._pending = True
        elif self.armed:
            raise KeyboardInterrupt
        else:
            self._arrived_early = True


def _default_handler(handle: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    """Return `handle` as a function that looks like Python's own handler."""

    def default_int_handler(signalnum: int, frame: FrameType | None, /) -> None:
        handle()

    handler: Callable[[int, FrameType | None], None] = as_builtin(default_int_handler, _PYTHONS_OWN)
    return handler


# The worker's end of its socket, for all threads of the session.
#
# The worker owns no thread. The thread that waits first reads for all (leader); the other threads
# wait for their messages (followers). A fork of the process therefore always has a single thread.

# The usual size of a socket buffer: fewer reads for a large cell, no cost for a small one.
_CHUNK = 1 << 16
_get_ident = _thread.get_ident
_thread_count = _thread._count  # as the tests of threading use it
_SOL_SOCKET, _SCM_RIGHTS = socket.SOL_SOCKET, socket.SCM_RIGHTS
_CUT = int(socket.MSG_CTRUNC)  # `&` with a member of an enum runs five functions, in each step
_FD_SPACE = socket.CMSG_SPACE(2 * array.array("i").itemsize)  # standard output and error


class _ConnectionState:
    """State at the beginning of a connection.

    The second connection of a worker gets it from the template: a snapshot that takes over, or a
    branch, would write to some twenty more pages to make it.
    """

    def __init__(self) -> None:
        self.connection = WorkerConnection()
        self.poller = select.poll()
        # A poller of its own: a signal handler that runs during this wait may call the host, and
        # wait too.
        self.command_poller = select.poll()
        # The lock itself: a condition acquires it in Python, where an interrupt can arrive in
        # between and leave the lock held for good.
        self.lock = threading.Lock()
        self.turn = threading.Condition(self.lock)
        self.sending = threading.Lock()
        self.commands: deque[HostMessage] = deque()
        self.replies: dict[int, HostReply] = {}
        self.awaited: set[int] = set()
        self.descriptors: deque[int] = deque()


class WorkerChannel:
    """Sends messages and waits for commands and replies; `Disconnected` when the host has gone.

    Attributes:
        polls: whether to wait for commands in poll(2), not in recvmsg(2).
    """

    _socket: socket.socket
    _main: int

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.polls = False
        self._prepared: _ConnectionState | None = None
        self.renew()
        self._prepared = _ConnectionState()

    def renew(self) -> None:
        """Reset to a new connection: pending messages belong to another process.

        So does the socket, whose number may be another descriptor's by now.
        """
        if hasattr(self, "_socket"):
            self._socket.detach()
            del self._socket
        state, self._prepared = self._prepared or _ConnectionState(), None
        self._connection = state.connection
        self.encode_empty_result = self._connection.empty_result
        self._poller = state.poller
        self._command_poller = state.command_poller
        self._lock, self._turn = state.lock, state.turn
        self._sending = state.sending
        self._leading = 0  # the reading thread: its call number plus one, else below 0
        self._commands = state.commands
        self._replies = state.replies
        self._awaited = state.awaited
        self._descriptors = state.descriptors

    def open(self, fd: int) -> None:
        """Use the socket `fd` from now on."""
        if hasattr(self, "_socket"):
            self.renew()
        # Explicit arguments spare system calls for the socket's kind.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        self._socket, self._recv, self._recvmsg = sock, sock.recv, sock.recvmsg
        self._main = _get_ident()
        self._poller.register(sock, select.POLLIN)
        self._command_poller.register(sock, select.POLLIN)

    def close(self) -> None:
        """Release the socket: this process is a child that the session's code forked."""
        self._socket.close()

    def has_input(self, milliseconds: int) -> bool:
        """Return whether the host sends something in time. Only the main thread, between cells."""
        return bool(self._commands or self._poller.poll(milliseconds))

    @property
    def idle(self) -> bool:
        """True if no request of the host is in progress."""
        return self._connection.phase is ProtocolPhase.IDLE

    def send(self, message: WorkerMessage, *, after: bytes = b"") -> None:
        """Send one message whole, `after` the bytes of `encoded`."""
        main = _get_ident() == self._main
        with self._sending:
            if main:
                self._interrupts.hold()
            try:
                self._socket.sendall(after + self._connection.send(message))
            except OSError as error:
                raise _disconnected_by(error) from None
            finally:
                if main:
                    self._interrupts.allow()

    def encoded(self, message: WorkerMessage) -> bytes:
        """Return the bytes of `message`, for a caller that sends them itself."""
        return self._connection.send(message)

    def end_cell(self, result: bytes) -> None:
        """Send the result of a cell, encoded by `encoded`; the main thread, between cells."""
        try:
            if _thread_count() == 0:  # no other thread can be sending
                self._socket.sendall(result)
            else:
                with self._sending:
                    self._socket.sendall(result)
        except OSError as error:
            raise _disconnected_by(error) from None

    def next_command(self) -> HostMessage | tuple[int, bytes]:
        """Wait for the next command; a cell may be returned as its number and code.

        Only the main thread calls this, between cells.
        """
        # Without another thread, no thread shares the reading.
        try:
            while self._is_alone():
                if self.polls:
                    self._command_poller.poll()
                # No descriptor can arrive here: the host sends one only on request.
                data = self._recv(_CHUNK)
                cell = self._connection.cell(data)
                if cell is not None:
                    return cell
                self._take(data)
        except OSError as error:
            raise _disconnected_by(error) from None
        while True:
            with self._lock:
                if self._commands:
                    return self._commands.popleft()
                if self._leading:
                    self._turn.wait()
                    continue
                self._leading = -1
            self._read_for_all()

    def _is_alone(self) -> bool:
        """Return whether the main thread is the only one, and no received message is waiting."""
        return _thread_count() == 0 and not self._leading and not self._commands

    def next_descriptor(self) -> int:
        """Return the descriptor that came with the last reply.

        OSError if no descriptor number was free: the session's code may open all that its limit
        allows.
        """
        fd = self._descriptors.popleft()
        if fd < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return fd

    def ask(self, message: HostCall | Answered) -> HostReply:
        """Send a call and wait for the reply of the host."""
        call = message.call
        main = _get_ident() == self._main
        # Before sending: the leading thread may receive the reply before this thread continues.
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
                self._read_for_all(interruptible=main)
        finally:
            with self._lock:
                if self._leading == call + 1:
                    # An interrupt arrived before the read; without this, no thread would ever read
                    # again.
                    self._leading = 0
                    self._turn.notify_all()
                self._awaited.discard(call)
                self._replies.pop(call, None)

    def _read_for_all(self, *, interruptible: bool = False) -> None:
        """Read once, sort the messages, and hand the lead on."""
        messages: list[HostMessage] = []
        try:
            if interruptible:
                self._poller.poll()
                self._interrupts.hold()
            messages = list(self._connection.receive(self._read()))
        finally:
            with self._lock:
                self._leading = 0
                self._deliver(messages)
                self._turn.notify_all()
            if interruptible:
                self._interrupts.allow()

    def _take(self, data: bytes) -> None:
        """Accept the messages in the bytes from the socket."""
        if not data:
            raise Disconnected
        self._deliver(list(self._connection.receive(data)))

    def _deliver(self, messages: list[HostMessage]) -> None:
        for message in messages:
            if type(message) is not HostReply:
                self._commands.append(message)
            elif message.call in self._awaited:
                self._replies[message.call] = message

    def _read(self) -> bytes:
        """Read from the socket; keep attached descriptors for `next_descriptor`."""
        try:
            data, ancillary, flags, _ = self._recvmsg(_CHUNK, _FD_SPACE)
        except OSError as error:
            raise _disconnected_by(error) from None
        for level, kind, payload in ancillary:
            if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
                self._descriptors.extend(array.array("i", payload))
        if flags & _CUT:
            self._descriptors.append(-1)  # the kernel has closed it
        if not data:
            raise Disconnected
        return data


def _disconnected_by(error: OSError) -> Exception:
    """Return `Disconnected` for an I/O error, unless the session's code raised the error.

    Signal handlers of alarms often raise such errors. The socket has no time-out, and its own
    errors have numbers.
    """
    return error if error.errno is None or type(error) is TimeoutError else Disconnected()


class Disconnected(Exception):
    """The host closed the connection: the worker must end."""
