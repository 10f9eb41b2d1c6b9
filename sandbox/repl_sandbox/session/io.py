"""`SessionIO`: what passes between the host and the processes of one session, without waiting.

All reads and writes are non-blocking. An operation that has to wait is a generator: it yields the
time at which it wants to be woken if nothing happens, is resumed with the descriptors that are
ready, and hands these to `receive`.
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

Ready_: TypeAlias = "list[tuple[int, int]]"

# Bytes that are read of a worker at a time, unless a driver says otherwise.
READ = 1 << 16


class Handler(Protocol):
    """Takes what comes in and is no affair of the sockets."""

    def take(self, message: WorkerMessage) -> None:
        """Take in one message of the worker; RemoteProtocolError if it is against the rules."""

    def wake(self, fd: int) -> None:
        """Take in what there is at `fd`: standard output or error, or replies of host functions."""


class SessionIO:
    """The host's ends of a session.

    Attributes:
        worker, init, configuration: the worker's state, the way to init, what workers are told.
        descriptors: what drivers wait for. The first is the worker's socket, while it lives.
        worker_fd: that socket; `outbox.interest` says what to wait for there.
        most_read: bytes to read of the worker at a time.
        answer: the last message of the worker that is neither a result nor a call.
        closing: whether the sandbox ends the session, perhaps amid a call.
    """

    def __init__(
        self,
        links: SessionLinks,
        cell: RunningCell,
        configuration: WorkerConfiguration,
        wakes: tuple[int, ...],
    ) -> None:
        """`wakes`: descriptors to wait for besides those of the session."""
        self.links = links
        self._cell = cell
        self.configuration = configuration
        self.worker = WorkerState()
        self.init = InitChannel(links, self.worker, cell)
        self.outbox = SendBuffer(links.worker)
        self.most_read = READ
        self.answer: WorkerMessage | None = None
        self.closing = False
        self.worker_fd = links.worker.fileno()
        self._lending = AttachedFile()
        self._wakes = wakes
        self._handler: Handler | None = None
        self.name_descriptors()

    def listen(self, handler: Handler | None) -> None:
        """Hand what comes in to `handler` from now on; None: nothing more is taken in."""
        self._handler = handler

    # ── what is waited for ────────────────────────────────────────────────────────────────────

    def name_descriptors(self) -> None:
        """Have drivers wait for all descriptors, the worker's socket too."""
        links = self.links
        others = self.init.fd, links.stdout, links.stderr, *self._wakes
        self.descriptors: tuple[int, ...] = (self.worker_fd, *others)

    def wait_also_for(self, wakes: tuple[int, ...]) -> None:
        """Have drivers wait for `wakes` besides the session's descriptors."""
        if wakes != self._wakes:
            self._wakes = wakes
            self.name_descriptors()

    def turn_from_worker(self) -> None:
        """Wait no more for a dead one: its socket is readable for ever, and a wait would spin."""
        self.descriptors = tuple(fd for fd in self.descriptors if fd != self.worker_fd)
        self.outbox = SendBuffer(self.links.worker)
        self._lending.forget()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    def receive(self, ready: Ready_) -> None:
        """Take in what there is to read at the descriptors that are ready."""
        if len(ready) == 1 and ready[0][0] == self.worker_fd and not self.outbox:
            # What the cell wrote before its result was in the pipes before the worker said so.
            # The worker's socket is looked at first, so if nothing is ready besides, nothing is
            # left in the pipes.
            self._cell.quiet = self.take(self.read_worker())
            return
        for fd, _ in ready:
            if fd == self.worker_fd:
                if self.outbox and not self.outbox.flush():
                    self.worker.eof = True
                self._lend()
                if self.outbox.interest & select.POLLIN:
                    self.take(self.read_worker())
            elif fd == self.init.fd:
                self.init.read()
            elif self._handler is not None:
                self._handler.wake(fd)

    def read_worker(self) -> bytes:
        """What the worker sent, once; nothing if there was nothing, or if that was the end."""
        most = self.most_read
        if most < READ:
            # A frame that has begun may be large, and is looked at once it is whole.
            most = min(max(most, self.links.connection.missing), READ)
        try:
            data = self.links.worker.recv(most)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        if not data:
            self.worker.eof = True
        return data

    def take(self, data: bytes) -> bool:
        """Take in what the worker sent; whether that was the result and nothing before it."""
        if not data:
            return False
        connection, cell = self.links.connection, self._cell
        whole = connection.between_messages
        try:
            for message in connection.receive(data):
                self._hand(message)
                whole = whole and cell.result is not None
        except RemoteProtocolError:
            self.worker.breach = "protocol"
            self.worker.eof = True
            self.init.kill_worker()
        return whole

    def _hand(self, message: WorkerMessage) -> None:
        if self._handler is not None:
            self._handler.take(message)

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def say_first(self) -> None:
        """Tell a worker what each is told before anything else."""
        configure = self.configuration.due()
        if configure is not None:
            self.send(configure)
            if not self.worker.eof:
                self.configuration.was_sent()

    def send(self, message: HostMessage, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the worker, or keep it until it can be sent."""
        if not self.outbox.send(self.links.connection.send(message), descriptors):
            self.worker.eof = True

    def send_frame(self, frame: bytes) -> bool:
        """Send what the connection has made a frame already; False if the worker is gone."""
        if self.outbox.send(frame):
            return True
        self.worker.eof = True
        return False

    def offer(self, memfd: int | None) -> None:
        """Let the worker have the file in memory `memfd` when it asks; None: no more."""
        self._lending.offer(memfd)

    def withdraw(self) -> None:
        """Lend the worker nothing any more: who lent it takes it back."""
        self._lending.offer(None)

    def ask_for_memfd(self, call: HostCall) -> None:
        """The worker asks for the file that it is offered, by `call`.

        Raises:
            RemoteProtocolError: it has asked, and was not answered yet.
        """
        self._lending.ask(call)
        self._lend()

    def _lend(self) -> None:
        # The file goes with the first byte of the reply, so all before that must have been sent.
        if not self.outbox and (lent := self._lending.reply()) is not None:
            reply, descriptor = lent
            self.send(reply, () if descriptor is None else (descriptor,))

    # ── another worker ────────────────────────────────────────────────────────────────────────

    def adopt(self, socket_: socket.socket) -> None:
        """Speak with another worker from now on, which has not said anything yet."""
        links = self.links
        links.worker.close()
        links.worker, links.connection, links.worker_pid = socket_, HostConnection(), 0
        self.worker_fd = socket_.fileno()
        self.name_descriptors()
        self.outbox = SendBuffer(socket_)
        self._lending.forget()
        self.worker.renew()
        self.answer = None
        self.init.unacknowledged = 0

    def receive_new(self, ready: Ready_) -> None:
        """As `receive`, while the first message of a new worker is waited for."""
        for fd, _ in ready:
            if fd != self.worker_fd:
                self.receive([(fd, select.POLLIN)])
            elif self.links.worker_pid:
                self.take(self.read_worker())
            else:
                self._hear_new()

    def _hear_new(self) -> None:
        links = self.links
        try:
            links.worker_pid = read_ready(links)
        except BlockingIOError:
            return  # what is sent out of band wakes a reader, and is not read
        except (OSError, RemoteProtocolError):  # what was woken is no copy of ours
            pass
        if not links.worker_pid:
            self.worker.eof = True
            return
        links.worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self.worker.follow(links.cpu_clock())
        self.init.worker_came()
        try:
            for message in links.connection.receive(b""):  # what came in the same chunk
                self._hand(message)
        except RemoteProtocolError:
            self.worker.eof = True

    # ── whether it is as it was made ──────────────────────────────────────────────────────────

    @property
    def untouched(self) -> bool:
        """Whether nothing was told to any process of the session's, and all of them live."""
        return self.configuration.silent and not self.init.told and not self.worker.dead
