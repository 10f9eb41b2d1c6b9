"""`SessionIO`: non-blocking input and output between the host and the processes of one session.

An operation that has to wait is a generator: it yields the time at which it wants to continue if
nothing happens, receives the descriptors that are ready, and hands these to `receive`.
"""

from __future__ import annotations

import fcntl
import select
import signal
import socket
import termios
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar

from ..errors import RemoteProtocolError
from ..host.links import SessionLinks, read_ready
from ..protocol import control
from ..protocol.connection import HostConnection
from ..protocol.messages import (
    MEMFD,
    Assign,
    Configure,
    HostCall,
    HostMessage,
    HostReply,
    WorkerMessage,
)
from ..protocol.values import MAX_DEPTH, MAX_DIGITS
from ..types import KillReason
from .host_functions import refusal, success
from .running_cell import RunningCell

# `AttachedFile`: a file in memory that belongs to a request, for the worker to ask for.
#
# It is not sent with the request: a worker that waits for requests would have to receive each by
# recvmsg(2), which takes a step two microseconds longer than recv(2).


class AttachedFile:
    """The file that is offered to one session. Its descriptor is sent once, and only while it is
    offered: afterwards its number may be another file's.
    """

    __slots__ = ("_call", "_offered")

    def __init__(self) -> None:
        self._offered: int | None = None
        self._call: HostCall | None = None

    def offer(self, descriptor: int | None) -> None:
        """Offer `descriptor` to the worker; None: no file."""
        self._offered = descriptor

    def ask(self, call: HostCall) -> None:
        """Note that the worker asks, by a call of `MEMFD`.

        Raises:
            RemoteProtocolError: it has already asked, and has no reply yet.
        """
        if self._call is not None:
            raise RemoteProtocolError(f"{MEMFD} is called twice")
        self._call = call

    def forget(self) -> None:
        """Forget the request of a worker that is gone."""
        self._call = None

    def reply(self) -> tuple[HostReply, int | None] | None:
        """Return the reply and its descriptor; None if the worker has not asked."""
        call, self._call = self._call, None
        if call is None:
            return None
        descriptor, self._offered = self._offered, None
        if descriptor is None:
            return refusal(
                call.call, "Cancelled", "the request that the file belongs to was given up"
            ), None
        return success(call, None), descriptor


# `SendBuffer`: bytes for a worker that its socket does not accept yet.
#
# A hostile worker may stop reading. The host never blocks on it, and while much is unread it
# reads nothing from it: a worker gets answers only if it reads them.

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


# `WorkerConfiguration`: the message that each worker of a session receives before any other.
#
# The first worker receives variables with it, which then need no request of their own.

# Bytes of variables besides those of the template, with their names: one write to a socket.
_MAX_VARIABLES = 1 << 14
# Bytes of a variable's row in the header, besides its name, each byte of which may be an escape of
# six.
_ROW, _ESCAPE = 32, 6


class WorkerConfiguration:
    """The configuration, and whether the current worker has it."""

    def __init__(self, message: Configure, *, optional: bool) -> None:
        """`optional`: a worker works without the configuration."""
        self.message = message
        self._optional = optional
        self.is_known = False  # whether this worker has the configuration, or needs none
        self.is_unsent = True  # whether no worker has received anything so far
        self._was_sent = False  # whether a worker has received it
        self._size = 0  # bytes of the variables in it

    def add(self, variable: Assign) -> bool:
        """Have the session start with `variable`; False if it has started, or the limit is
        exceeded.

        False also for a variable that a worker might refuse: the worker has to be asked.
        """
        size = self._size + _ROW + _ESCAPE * len(variable.name.encode()) + len(variable.data)
        if not self.is_unsent or size > _MAX_VARIABLES or not _is_readable(variable):
            return False
        self._size = size
        self.message = replace(self.message, variables=(*self.message.variables, variable))
        self._optional = self.is_known = False
        return True

    def take_due(self) -> Configure | None:
        """Return the message if this worker must receive it before the next one."""
        self.is_unsent = False
        if self.is_known:
            return None
        self.is_known = True
        return None if self._optional else self.message

    def was_sent(self) -> None:
        """Note that a worker has received the message of `take_due`."""
        self._was_sent = True

    def restored(self) -> None:
        """Note that a snapshot took over: it has the configuration of its original."""
        self.is_known, self.is_unsent = True, False

    def emptied(self, *, keeps_variables: bool) -> None:
        """Note that an empty worker took over, which has no configuration.

        Variables that a worker has received are part of the namespace, and lost with it.
        """
        if self._was_sent and not keeps_variables:
            self.message = replace(self.message, variables=())
        self.is_known = self._optional


def _is_readable(variable: Assign) -> bool:
    """Return whether any worker can read the value: no table, which needs a library, and not JSON
    that may be too deep, or have too long a number.
    """
    data = variable.data
    if variable.kind == "json":
        return len(data) <= MAX_DIGITS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    return variable.kind != "table"


# `WorkerState`: whether a session's worker lives, the CPU time of its workers, and lost objects.


class WorkerState:
    """The current worker of a session, and the reports on the workers before it.

    Attributes:
        notice: Init's message that the worker has died, or that init itself is gone.
        eof: True if nothing more comes from the worker, or is read from it.
        kill_ordered: True if its end was requested; a result that it still sends does not count.
        kill_deadline: The time at which init is given up if the worker has not ended; 0.0: none.
        is_unresponsive: True if it was killed because no notice of its death came.
        breach: The limit or rule because of which it is killed.
        worker_number: Its number, as init counts.
        cpu_of_ended: CPU seconds of the workers before it.
        lost: Descriptions of what recovery could not restore, until an outcome reports them.
        died_before: How a worker died between two cells, until an outcome reports it.
        emptied: True if the namespace was emptied between two cells, until an outcome reports it.
    """

    def __init__(self) -> None:
        self.worker_number = 1
        self.cpu_of_ended = 0.0
        self._cpu_clock: Callable[[], float] = float
        self.lost: tuple[str, ...] = ()
        self.emptied = False
        self.died_before: KillReason | None = None
        self.reset()

    def reset(self) -> None:
        """Note that there is another worker, of which nothing is known yet."""
        self.notice: control.Message | None = None
        self.eof = self.kill_ordered = self.is_unresponsive = False
        self.kill_deadline = 0.0
        self.breach: KillReason | None = None

    @property
    def dead(self) -> bool:
        """True if the worker is gone, or its socket has ended."""
        return self.eof or self.notice is not None

    @property
    def init_is_gone(self) -> bool:
        """True if the session's init has ended, and with it the session."""
        return self.notice is not None and "init" in self.notice

    def set_cpu_clock(self, cpu_clock: Callable[[], float]) -> None:
        """Measure CPU time by `cpu_clock` from now on. Reading it raises OSError if the process is
        gone.
        """
        self._cpu_clock = cpu_clock

    def cpu_seconds(self) -> float:
        """The CPU time of the session's workers so far."""
        try:
            return self.cpu_of_ended + self._cpu_clock()
        except OSError:
            # The process is gone; init's notice will have its CPU time.
            of_dead = 0.0 if self.notice is None else float(self.notice.get("cpu", 0.0))
            return self.cpu_of_ended + of_dead


# `InitChannel`: the messages between the host and a session's init (pid 1).


class InitChannel:
    """The host's end of the control socket.

    Attributes:
        fd: The descriptor to wait for.
        was_used: True if init has received anything; if so, another caller cannot have the session.
        unacknowledged: The number of interrupts that init has not yet reported as sent.
        worker_number: The number of the current worker, for threads that inspect processes.
        revived, branched: Init's reports on the last command to activate a snapshot, or to fork a
            branch.
        elsewhere: Init's last report on a new worker: it does something else than to begin.
    """

    def __init__(self, links: SessionLinks, worker: WorkerState, cell: RunningCell) -> None:
        self._links, self._worker, self._cell = links, worker, cell
        self.fd = links.control.fileno()
        self.was_used = False
        self.unacknowledged = 0
        self.worker_number = 0
        self.revived: control.Message | None = None
        self.branched: bool | None = None
        self.elsewhere = False
        self._branches = 0  # the number of ordered interrupts
        # True if init has the order to kill the worker, and there is no other worker yet.
        self._replacing = False
        self._interrupted = 0  # the last cell that was interrupted
        self._lock = threading.Lock()

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def send(self, message: control.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, with descriptors. `read` finds out whether init is gone."""
        self.was_used = True
        try:
            control.send(self._links.control, message, descriptors)
        except OSError:
            self.unacknowledged = 0

    def kill_worker(self, after: int | None = None) -> None:
        """Have init kill the worker, but not before there is a snapshot of the state after cell
        `after`.
        """
        self._worker.kill_ordered = True
        self.send({"op": "kill"} if after is None else {"op": "kill", "after": after})

    def request_worker(self, order: control.Message, end: int) -> None:
        """Have init replace the worker by another, which will speak on descriptor `end`."""
        self.revived = None
        with self._lock:
            self._replacing = True
        self.send(order, (end,))

    def request_branch(self, seed: int | None, ends: tuple[int, ...]) -> None:
        """Have init tell the worker to fork a branch, which is connected by `ends`."""
        self.branched, self._branches = None, self._branches + 1
        order = {"op": "branch", "seed": -1 if seed is None else seed, "number": self._branches}
        self.send(order, ends)

    def probe(self) -> None:
        """Ask init whether the new worker does something else than to begin."""
        self.send({"op": "probe"})

    def keep_worker(self) -> None:
        """Note that no other worker replaces this one."""
        self._replacing = False

    def note_new_worker(self) -> None:
        """Note that there is another worker: observations of the last one are void."""
        with self._lock:
            self.worker_number += 1
            self._replacing = False

    # ── from any thread ───────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs."""
        with self._lock:
            if not self._cell.running_since:
                return
            self.unacknowledged += 1
            self._interrupted = self._cell.number
            self.send({"op": "interrupt", "cell": self._cell.number})

    @property
    def interrupting(self) -> bool:
        """True if the running cell was interrupted and has not ended yet."""
        return bool(self._cell.running_since) and self._interrupted == self._cell.number

    def breach(self, reason: KillReason, worker_number: int) -> None:
        """Kill the worker because it exceeded a limit.

        `worker_number`: that of the worker that exceeded it; its successor is spared.
        """
        with self._lock:
            if worker_number == self.worker_number and not self._replacing:
                self._worker.breach = reason
                self.send({"op": "kill", "reason": reason})

    # ── notices ───────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """Read one message, if there is one."""
        try:
            message = control.receive(self._links.control)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            notice = {"died": 0, "status": signal.SIGKILL, "cpu": 0.0, "init": True}
            self._worker.notice, self._worker.eof = notice, True
        else:
            self._take(message)

    def _take(self, message: control.Message) -> None:
        worker = self._worker
        if "interrupted" in message:
            with self._lock:
                # An interrupt that its worker did not live to get needs no acknowledgement.
                self.unacknowledged = max(0, self.unacknowledged - 1)
        elif "findings" in message:
            self._links.findings = message["findings"]
        elif "revived" in message:
            self.revived = message
        elif "branched" in message:
            if message["number"] == self._branches:  # else the report belongs to a cancelled call
                self.branched = message["branched"]
        elif "elsewhere" in message:
            self.elsewhere = message["elsewhere"] and message["worker"] == worker.worker_number
        elif "lost" in message:
            worker.lost = tuple(message["lost"])
        elif 0 < message.get("died", 0) < worker.worker_number:
            # the notice of a worker that was replaced meanwhile
            worker.cpu_of_ended += message["cpu"]
        elif "died" in message or "failed" in message:
            worker.notice = message


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
        worker_fd: That socket; `interest` has the events to wait for there.
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


# `ShieldedOperations`: operations that complete even if their caller leaves in the middle.

_T = TypeVar("_T")


class ShieldedOperations:
    """`unfinished`: the steps of an operation in progress, whose caller may have left."""

    def __init__(self) -> None:
        self.unfinished: Generator[float, ReadyDescriptors, object] | None = None

    def of(
        self, steps: Generator[float, ReadyDescriptors, _T]
    ) -> Generator[float, ReadyDescriptors, _T]:
        """Run `steps` and return their result; they complete even if the caller leaves."""
        self.unfinished = steps
        return (yield from self._drive(steps, begun=False))

    def of_abandoned(self) -> Generator[float, ReadyDescriptors, None]:
        """Complete the operation whose caller has left."""
        if self.unfinished is not None:
            yield from self._drive(self.unfinished, begun=True)

    def _drive(
        self, steps: Generator[float, ReadyDescriptors, _T], *, begun: bool
    ) -> Generator[float, ReadyDescriptors, _T]:
        # Not `yield from`, which would close `steps` with this generator.
        try:
            wake = steps.send([]) if begun else next(steps)
            while True:
                wake = steps.send((yield wake))
        except StopIteration as end:
            self.unfinished = None
            result: _T = end.value
            return result
