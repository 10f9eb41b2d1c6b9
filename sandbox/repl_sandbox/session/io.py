"""`SessionIO`: non-blocking input and output between the host and the processes of one session.

An operation that has to wait is a generator: it yields the time at which it wants to continue if
nothing happens, receives the descriptors that are ready, and hands these to `receive`.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from ..errors import RemoteProtocolError
from ..protocol.connection import HostConnection
from ..protocol.messages import HostCall, HostMessage, WorkerMessage
from ..zygote.client.session_handshake import read_ready
from ..zygote.client.session_links import SessionLinks
from .cells.running_cell import RunningCell
from .transport.attached_file import AttachedFile
from .transport.init_channel import InitChannel
from .transport.send_buffer import SendBuffer
from .transport.worker_configuration import WorkerConfiguration
from .transport.worker_state import WorkerState

ReadyDescriptors: TypeAlias = "list[tuple[int, int]]"

# Bytes of one read from a worker, unless a driver sets another number.
READ = 1 << 16


class Handler(Protocol):
    """Handles the input of a session."""

    def take(self, message: WorkerMessage) -> None:
        """Handle one message of the worker; raise RemoteProtocolError if it breaks the protocol."""

    def wake(self, fd: int) -> None:
        """Read `fd`: standard output or error, or replies of host functions."""


class SessionIO:
    """The host's ends of a session.

    Attributes:
        worker, init, configuration: The worker's state, the channel to init, the worker's
            configuration.
        descriptors: The descriptors that drivers wait for. The first is the worker's socket, while
            the worker lives.
        worker_fd: That socket; `send_buffer.interest` has the events to wait for there.
        read_size: Bytes of one read from the worker.
        answer: The last message of the worker that is neither a result nor a host call.
        closing: True if the sandbox ends the session, perhaps during a call.
    """

    def __init__(
        self,
        links: SessionLinks,
        cell: RunningCell,
        configuration: WorkerConfiguration,
        reply_fds: tuple[int, ...],
    ) -> None:
        """`reply_fds`: descriptors to wait for besides those of the session."""
        self.links = links
        self._cell = cell
        self.configuration = configuration
        self.worker = WorkerState()
        self.init = InitChannel(links, self.worker, cell)
        self.send_buffer = SendBuffer(links.worker)
        self.read_size = READ
        self.answer: WorkerMessage | None = None
        self.closing = False
        self.worker_fd = links.worker.fileno()
        self._attached_file = AttachedFile()
        self._reply_fds = reply_fds
        self._handler: Handler | None = None
        self.update_descriptors()

    def listen(self, handler: Handler | None) -> None:
        """Pass input to `handler` from now on; None: read no more."""
        self._handler = handler

    # ── what is waited for ────────────────────────────────────────────────────────────────────

    def update_descriptors(self) -> None:
        """Have drivers wait for all descriptors, including the worker's socket."""
        links = self.links
        others = self.init.fd, links.stdout, links.stderr, *self._reply_fds
        self.descriptors: tuple[int, ...] = (self.worker_fd, *others)

    def set_reply_fds(self, reply_fds: tuple[int, ...]) -> None:
        """Have drivers wait for `reply_fds` besides the session's descriptors."""
        if reply_fds != self._reply_fds:
            self._reply_fds = reply_fds
            self.update_descriptors()

    def ignore_worker(self) -> None:
        """Stop waiting for a dead worker: its socket is always readable, and a wait would spin."""
        self.descriptors = tuple(fd for fd in self.descriptors if fd != self.worker_fd)
        self.send_buffer = SendBuffer(self.links.worker)
        self._attached_file.forget()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    def receive(self, ready: ReadyDescriptors) -> None:
        """Read the descriptors that are ready."""
        if len(ready) == 1 and ready[0][0] == self.worker_fd and not self.send_buffer:
            # Output that a cell wrote before its result was in the pipes before the result was in
            # the socket. The socket is polled first, so if nothing else is ready, the pipes are
            # empty.
            self._cell.is_only_result = self.take(self.read_worker())
            return
        for fd, _ in ready:
            if fd == self.worker_fd:
                if self.send_buffer and not self.send_buffer.flush():
                    self.worker.eof = True
                self._send_file()
                if self.send_buffer.interest & select.POLLIN:
                    self.take(self.read_worker())
            elif fd == self.init.fd:
                self.init.read()
            elif self._handler is not None:
                self._handler.wake(fd)

    def read_worker(self) -> bytes:
        """Read once from the worker; empty if there is nothing, or at the end of the stream."""
        size = self.read_size
        if size < READ:
            # The rest of a large frame is parsed when the frame is complete.
            size = min(max(size, self.links.connection.missing), READ)
        try:
            data = self.links.worker.recv(size)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        if not data:
            self.worker.eof = True
        return data

    def take(self, data: bytes) -> bool:
        """Parse bytes of the worker; return whether they were the result and nothing before it."""
        if not data:
            return False
        connection, cell = self.links.connection, self._cell
        only_result = connection.between_messages
        try:
            for message in connection.receive(data):
                self._dispatch(message)
                only_result = only_result and cell.result is not None
        except RemoteProtocolError:
            self.worker.breach = "protocol"
            self.worker.eof = True
            self.init.kill_worker()
        return only_result

    def _dispatch(self, message: WorkerMessage) -> None:
        if self._handler is not None:
            self._handler.take(message)

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def send_configuration(self) -> None:
        """Send the configuration, which each worker receives before anything else."""
        configure = self.configuration.take_due()
        if configure is not None:
            self.send(configure)
            if not self.worker.eof:
                self.configuration.was_sent()

    def send(self, message: HostMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the worker, or keep it until the socket accepts it."""
        if not self.send_buffer.send(self.links.connection.send(message), descriptors):
            self.worker.eof = True

    def send_frame(self, frame: bytes) -> bool:
        """Send a frame that the connection has made; return False if the worker is gone."""
        if self.send_buffer.send(frame):
            return True
        self.worker.eof = True
        return False

    def offer(self, memfd: int | None) -> None:
        """Let the worker have the file in memory `memfd` when it asks; None: no file."""
        self._attached_file.offer(memfd)

    def withdraw(self) -> None:
        """Stop offering a file to the worker: the owner closes the file."""
        self._attached_file.offer(None)

    def attach_memfd(self, call: HostCall) -> None:
        """Attach the offered file to the reply to `call`, by which the worker asks for it.

        Raises:
            RemoteProtocolError: the worker has already asked, and has no reply yet.
        """
        self._attached_file.ask(call)
        self._send_file()

    def _send_file(self) -> None:
        # The file travels with the first byte of the reply, so everything before it must be sent
        # first.
        if not self.send_buffer and (attached := self._attached_file.reply()) is not None:
            reply, descriptor = attached
            self.send(reply, () if descriptor is None else (descriptor,))

    # ── another worker ────────────────────────────────────────────────────────────────────────

    def use_worker(self, socket_: socket.socket) -> None:
        """Switch to another worker, which has not sent anything yet."""
        links = self.links
        links.worker.close()
        links.worker, links.connection, links.worker_pid = socket_, HostConnection(), 0
        self.worker_fd = socket_.fileno()
        self.update_descriptors()
        self.send_buffer = SendBuffer(socket_)
        self._attached_file.forget()
        self.worker.reset()
        self.answer = None
        self.init.unacknowledged = 0

    def receive_new(self, ready: ReadyDescriptors) -> None:
        """As `receive`, while waiting for the first message of a new worker."""
        for fd, _ in ready:
            if fd != self.worker_fd:
                self.receive([(fd, select.POLLIN)])
            elif self.links.worker_pid:
                self.take(self.read_worker())
            else:
                self._receive_first()

    def _receive_first(self) -> None:
        links = self.links
        try:
            links.worker_pid = read_ready(links)
        except BlockingIOError:
            return  # out-of-band data wakes a reader, and is not read
        except (OSError, RemoteProtocolError):  # the process is not a snapshot of this session
            pass
        if not links.worker_pid:
            self.worker.eof = True
            return
        links.worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self.worker.set_cpu_clock(links.cpu_clock())
        self.init.note_new_worker()
        try:
            for message in links.connection.receive(b""):  # sent in the same chunk
                self._dispatch(message)
        except RemoteProtocolError:
            self.worker.eof = True

    # ── whether it is as it was made ──────────────────────────────────────────────────────────

    @property
    def untouched(self) -> bool:
        """True if no process of the session has received anything, and all of them live."""
        return self.configuration.is_unsent and not self.init.was_used and not self.worker.dead
