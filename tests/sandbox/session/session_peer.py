"""The parts of a session's core without a session: the test is the worker and init."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from repl_sandbox import Limits
from repl_sandbox.host.links import IsolationBaseline, SessionEndpoints, SessionLinks
from repl_sandbox.protocol import control
from repl_sandbox.protocol.connection import HostConnection, WorkerConnection
from repl_sandbox.protocol.messages import VERSION, Configure, HostMessage, Ready, WorkerMessage
from repl_sandbox.session.io import Handler, SessionIO, ShieldedOperations, WorkerConfiguration
from repl_sandbox.session.recovery import Recovery
from repl_sandbox.session.running_cell import RunningCell

_T = TypeVar("_T")

LIMITS = Limits(timeout=60, grace=60)


class Recorder:
    """A handler of `SessionIO` that records its arguments."""

    def __init__(self) -> None:
        self.messages: list[WorkerMessage] = []
        self.woken: list[int] = []
        self.io: SessionIO | None = None

    def take(self, message: WorkerMessage) -> None:
        """Write down a message, and let questions have it."""
        self.messages.append(message)
        if self.io is not None:
            self.io.answer = message

    def wake(self, fd: int) -> None:
        """Write down which descriptor is ready, and read it."""
        self.woken.append(fd)
        os.read(fd, 1 << 16)


class Peer:
    """The peers of a session: its worker's and its init's.

    Attributes:
        links, io, cell: the host's side, as all parts of a core have them.
        orders: what init was told, oldest first, once `hear_orders` has read it.
    """

    def __init__(
        self, configure: Configure | None = None, *, optional: bool = True, handler: bool = True
    ) -> None:
        ends = SessionEndpoints()
        control_end, worker, stdout, stderr = ends.take()
        theirs, ends.remote = ends.remote, []
        self.control = socket.socket(fileno=theirs[0])
        self.worker = socket.socket(fileno=theirs[1])
        self.stdout, self.stderr = theirs[2:]
        connection, self.connection = HostConnection(), WorkerConnection()
        list(connection.receive(self.connection.send(Ready(VERSION))))
        pid = os.getpid()
        self.links = SessionLinks(
            1,
            pid,
            pid,
            control_end,
            worker,
            stdout,
            stderr,
            connection,
            baseline=IsolationBaseline(pid),
        )
        self.cell = RunningCell(60.0)
        self.configuration = WorkerConfiguration(
            configure or Configure((), None, None), optional=optional
        )
        self.io = SessionIO(self.links, self.cell, self.configuration, ())
        self.io.worker.set_cpu_clock(self.links.cpu_clock())
        self.recorder = Recorder()
        self.recorder.io = self.io
        if handler:
            recorder: Handler = self.recorder
            self.io.listen(recorder)
        self.completion = ShieldedOperations()
        self.orders: list[control.Message] = []
        self._descriptors: list[int] = []

    def recovery(self, snapshots: int = 3) -> Recovery:
        """A recovery part with which this session goes on after a death."""
        return Recovery(self.io, self.cell, self.completion, {}, snapshots)

    def close(self) -> None:
        """Let go of all ends."""
        self.io.listen(None)
        self.links.close()
        self.worker.close()
        self.control.close()
        for fd in (self.stdout, self.stderr, *self._descriptors):
            os.close(fd)

    # ── the worker ────────────────────────────────────────────────────────────────────────────

    def say(self, message: WorkerMessage) -> None:
        """The worker says something."""
        self.worker.sendall(self.connection.send(message))

    def hear(self) -> list[HostMessage]:
        """Return the messages that the worker was sent and has not read."""
        heard: list[HostMessage] = []
        while select.select([self.worker], [], [], 0)[0]:
            data, fds, _, _ = socket.recv_fds(self.worker, 1 << 20, 8)
            self._descriptors += fds
            heard += self.connection.receive(data)
        return heard

    @property
    def descriptors(self) -> int:
        """The number of descriptors received with the messages."""
        return len(self._descriptors)

    def die(self, status: int = 0, *, number: int = 1, cpu: float = 0.0) -> None:
        """The worker ends, and init says so."""
        self.worker.close()
        self.send({"died": number, "status": status, "cpu": cpu})

    # ── init ──────────────────────────────────────────────────────────────────────────────────

    def send(self, message: control.Message) -> None:
        """Init sends the host a message."""
        control.send(self.control, message)

    def hear_orders(self) -> list[str]:
        """Return the names of the orders that init has received so far."""
        while select.select([self.control], [], [], 0)[0]:
            message, fds = control.receive_with_descriptors(self.control)
            assert message is not None
            self.orders.append(message)
            self._descriptors += fds
        return [each["op"] for each in self.orders]

    def start_worker(self, *messages: WorkerMessage) -> None:
        """Another worker begins, on the last descriptor that init was sent."""
        self.hear_orders()
        self.worker.close()
        self.worker = socket.socket(fileno=self._descriptors.pop())
        self.connection = WorkerConnection()
        for message in (Ready(VERSION), *messages):
            self.say(message)


def ready(io: SessionIO) -> list[tuple[int, int]]:
    """The descriptors that a driver would find ready."""
    poller = select.poll()
    for fd in io.descriptors:
        poller.register(fd, io.send_buffer.interest if fd == io.worker_fd else select.POLLIN)
    return poller.poll(0)


def drive(
    steps: Generator[float, Any, _T],
    io: SessionIO,
    *acts: Callable[[], object],
    begun: bool = False,
) -> _T:
    """The result of `steps`; whenever these wait for something, the next of `acts` is done."""
    left = list(acts)
    try:
        if not begun:
            next(steps)
        while True:
            while not (events := ready(io)):
                assert left, "the steps wait for something that nobody does"
                left.pop(0)()
            steps.send(events)
    except StopIteration as end:
        assert not left, "the steps have ended before all was done"
        result: _T = end.value
        return result
