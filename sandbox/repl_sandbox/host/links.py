"""`SessionLinks`: the host's connections to one session: made, shaken hands on, and compared with
the template (`IsolationBaseline`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

from ..errors import RemoteProtocolError, SandboxError
from ..jail.steps import step_error
from ..protocol import control
from ..protocol.connection import HostConnection
from ..protocol.control import MAX_MESSAGE, mark
from ..protocol.messages import VERSION, Ready
from .cgroups import SessionCgroup
from .proc import NAMESPACES, ProcessQuery, namespace, process_cpu, query_here, read, status

# `IsolationBaseline`: the host and the template, with which a session's isolation is compared.

__all__ = ["NAMESPACES", "ContainerIsolation", "IsolationBaseline", "namespace", "read", "status"]


@dataclass(frozen=True, slots=True)
class ContainerIsolation:
    """A template's container, as probed before the template was configured.

    `missing`: layers that were not found. `filters`: the number of its seccomp filters, with those
    of the host. `own_kernel`: whether its kernel is another than the host's. `one`: whether it is
    made for one session.
    """

    missing: tuple[str, ...]
    filters: int
    own_kernel: bool = False
    one: bool = False


class IsolationBaseline:
    """This process, and the template with process id `template`.

    Each fact is read once, when it is needed, with OSError if it cannot be read: changes of the
    host do not concern its sessions, which are forked from the template. Made before the template
    serves, because the template enters another network for each session. `container`: the container
    that the template is in. `query`: queries processes where these are; "self" is then the process
    that answers.
    """

    def __init__(
        self,
        template: int,
        container: ContainerIsolation | None = None,
        query: ProcessQuery | None = None,
    ) -> None:
        self.template = template
        self.container = container
        self.query = query or query_here
        self.is_remote = query is not None
        with contextlib.suppress(OSError):
            _ = self.namespaces

    def of(self, template: int) -> IsolationBaseline:
        """The baseline of a template that was forked from this one."""
        return IsolationBaseline(template, self.container, self.query if self.is_remote else None)

    @cached_property
    def namespaces(self) -> Mapping[str, frozenset[str]]:
        """The namespaces of the host and of the template, by name."""
        return {
            name: frozenset(self.query("namespace", pid, name) for pid in ("self", self.template))
            for name in NAMESPACES
        }

    @cached_property
    def uid_map(self) -> str:
        """The host's uid map: its users in terms of the parent namespace."""
        text: str = self.query("read", "self", "uid_map")
        return text

    @cached_property
    def uids(self) -> frozenset[int]:
        """The users of the host and of the template."""
        uids = {os.geteuid()}
        with contextlib.suppress(OSError):
            uids.add(int(self.query("status", self.template)["Uid"].split()[0]))
        return frozenset(uids)

    @cached_property
    def filters(self) -> int:
        """The number of seccomp filters of the template before it loads its own.

        A container may have added them around the host, or around the template alone.
        """
        if self.container is not None:
            return self.container.filters
        return int(status("self").get("Seccomp_filters", "0"))


# `SessionEndpoints`: both ends of the connections to a session or branch, made before it exists.


class SessionEndpoints:
    """Control and worker socket, stdout, stderr; the host's ends do not block.

    `remote`: the descriptors for init, in their order.

    Raises:
        OSError: this process has no free descriptors.
    """

    def __init__(self) -> None:
        self.remote: list[int] = []
        self._sockets: list[socket.socket] = []
        self._pipes: list[int] = []
        try:
            self._connect(*control.pair())
            self._connect(*socket.socketpair())
            # The kernel then reports the sender of the first message.
            self._sockets[1].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._pipe(1)
            self._pipe(2)
        except OSError:
            self.close()
            raise

    def _connect(self, local: socket.socket, remote: socket.socket) -> None:
        self._sockets.append(local)
        self.remote.append(remote.detach())
        local.setblocking(False)

    def _pipe(self, stream: int) -> None:
        local, remote = os.pipe2(os.O_CLOEXEC)
        self._pipes.append(local)
        self.remote.append(remote)
        mark(remote, stream)
        os.set_blocking(local, False)

    def take(self) -> tuple[socket.socket, socket.socket, int, int]:
        """Return the host's ends, which the caller owns from here on."""
        (control_end, worker), self._sockets = self._sockets, []
        (stdout, stderr), self._pipes = self._pipes, []
        return control_end, worker, stdout, stderr

    def close_remote(self) -> None:
        """Close the other ends, which have been sent."""
        remote, self.remote = self.remote, []
        for fd in remote:
            os.close(fd)

    def close(self) -> None:
        """Close everything: there will be no session."""
        self.close_remote()
        sockets, self._sockets = self._sockets, []
        pipes, self._pipes = self._pipes, []
        for end in sockets:
            end.close()
        for fd in pipes:
            os.close(fd)


def write_end(fd: int, stream: int) -> int:
    """Return another end to write to the pipe of `stream`, which is read at `fd`.

    Raises:
        OSError: this process has no free descriptors.
    """
    end = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    mark(end, stream)
    return end


# `SessionLinks`: the host's connections to one session, and the number of its branches.

# init needs milliseconds; on a machine that swaps or is overloaded a thousand times that.
_END_TIMEOUT = 30.0


class SessionFamily:
    """The number of open branches of one session, the session itself included.

    The callers' `adjust` adapts the resources to that number: one call at a time, and none after
    the last branch has left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.branches = 1

    def join(self, limit: int, adjust: Callable[[int], None]) -> bool:
        """Add a branch, unless there are `limit`; return whether it was added."""
        with self._lock:
            if self.branches >= limit:
                return False
            adjust(self.branches + 1)
            self.branches += 1
            return True

    def leave(self) -> bool:
        """Remove a branch; return whether it was the last."""
        with self._lock:
            self.branches -= 1
            return not self.branches

    def adjust(self, adjust: Callable[[int], None]) -> None:
        """Release the resources of closed branches."""
        with self._lock:
            if self.branches:
                adjust(self.branches)


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionLinks:
    """The host's connections to one session. `pid` is that of its init, as the host sees it."""

    number: int  # the number of the request that made the session
    pid: int
    worker_pid: int
    control: socket.socket
    worker: socket.socket
    stdout: int
    stderr: int
    connection: HostConnection
    baseline: IsolationBaseline
    group: SessionCgroup | None = None
    # The worker's report, before any code ran, on layers that cannot be seen from outside.
    findings: dict[str, int] = field(default_factory=dict)
    folder: str = ""  # its own directory, if it has no private mounts
    tier: str = "jailed"
    interpreter: tuple[str, str] = ("", "")  # version and implementation
    family: SessionFamily = field(default_factory=SessionFamily)

    def __post_init__(self) -> None:
        _open.add(self)

    @property
    def ended(self) -> bool:
        """True if the session's init is gone, and the session with it."""
        poller = select.poll()
        poller.register(self.control, 0)  # reported without a request: the other end is closed
        return bool(poller.poll(0))

    def cpu_clock(self) -> Callable[[], float]:
        """Return the clock of the current worker's CPU time."""
        if self.baseline.is_remote:
            return partial(self.baseline.query, "cpu_clock", self.worker_pid)
        return partial(time.clock_gettime, process_cpu(self.worker_pid))

    @property
    def has_input(self) -> bool:
        """True if the worker has sent something that was not read yet, or is gone."""
        poller = select.poll()
        poller.register(self.worker, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the connections; the session ends, because its init reads end of file."""
        _open.discard(self)  # the numbers may be reused from here on
        self.control.close()
        self.worker.close()
        os.close(self.stdout)
        os.close(self.stderr)
        group, self.group = self.group, None
        if group is not None:
            group.release()

    def end_branch(self) -> None:
        """End one branch of a session that has others: when this returns its processes are gone."""
        try:
            self.control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # init is gone, and the session with it
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        until = time.monotonic() + _END_TIMEOUT
        while poller.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                if not self.control.recv(MAX_MESSAGE):
                    return
            except OSError:
                return

    def redirect(self, fd: int) -> None:
        """Replace the descriptor of each connection by `fd`, under the same number."""
        for end in (self.control.fileno(), self.worker.fileno(), self.stdout, self.stderr):
            if end >= 0:
                os.dup2(fd, end, inheritable=False)


_open: weakref.WeakSet[SessionLinks] = weakref.WeakSet()


def _cut() -> None:
    """In a child of the host: disconnect from the session.

    The fork may come during a call, in a signal handler or an `on_output`. The child that goes on
    there, or exits, finds each session ended, reads no answer of its parent's and sends nothing in
    its name.
    """
    if not _open:
        return
    with suppress(OSError):  # the child cannot open anything more
        ended, other = socket.socketpair()
        other.close()
        with ended:
            for links in list(_open):
                links.redirect(ended.fileno())


os.register_at_fork(after_in_child=_cut)


# The handshake with a new session: its worker is ready, or an error explains why not.
#
# The zygote does not answer a spawn: the worker sends the first message, or the error comes
# through the session's control socket.

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_RIGHT = struct.Struct("i")


def await_ready(links: SessionLinks, seconds: float) -> bool:
    """Wait for the worker's first message, and note its pid; False if there will be no session.

    Raises:
        IsolationError: a step of the jail failed.
        OSError: the session has ended since.
        SandboxError: nothing came within `seconds`, or the session failed otherwise.
    """
    # Not select(2), which ends at descriptor 1,023. Only the worker's socket: a failing process
    # also ends, and with the last process that has the other end the socket ends.
    poller = select.poll()
    poller.register(links.worker, select.POLLIN)
    if not poller.poll(seconds * 1000):
        raise SandboxError(f"the zygote did not answer within {seconds} s")
    pid = read_ready(links)
    if pid:
        _read_report(links)
        links.worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        links.worker_pid, links.pid = pid, _parent(pid, links)
        return True
    links.control.settimeout(1.0)
    report = _read_report(links)
    if report is None:
        return False
    if "failed" in report:
        raise control.error_of(report)
    raise SandboxError(f"the session did not start: {report}")


def read_ready(links: SessionLinks) -> int:
    """Return the pid of the worker that has just sent `Ready`; 0 if it is gone without a
    message.
    """
    apart = links.baseline.is_remote
    # For a worker of this kernel there is no buffer for descriptors, which the kernel then closes;
    # for the relay's messages there is a buffer for one.
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + (socket.CMSG_LEN(_RIGHT.size) if apart else 0)
    data, ancillary, _, _ = links.worker.recvmsg(256, space, socket.MSG_CMSG_CLOEXEC)
    pids = {kind: _pid(kind, payload) for _, kind, payload in ancillary}
    for message in links.connection.receive(data):
        if not isinstance(message, Ready) or message.version != VERSION:
            raise RemoteProtocolError("the worker has another version of the protocol")
        # For a worker elsewhere the kernel there reported the pid, and here reports the relay.
        return pids.get(socket.SCM_RIGHTS if apart else socket.SCM_CREDENTIALS, 0)
    return 0


def _pid(kind: int, payload: bytes) -> int:
    """Return the sender's pid: the kernel's report, or the number in a file."""
    if kind == socket.SCM_CREDENTIALS:
        pid: int = _CREDENTIALS.unpack(payload)[0]
        return pid
    with open(_RIGHT.unpack(payload)[0], "rb", buffering=0) as file:
        return int(os.pread(file.fileno(), 20, 0) or 0)


def _read_report(links: SessionLinks) -> control.Message | None:
    """Read the other messages of the session's processes or the zygote: how the session failed.

    The worker's report on its isolation, which comes before, is kept.
    """
    try:
        message = control.receive(links.control)
        if message is not None and "findings" in message:
            links.findings = message["findings"]
            message = control.receive(links.control)
        return message
    except OSError:
        return None


def _parent(pid: int, links: SessionLinks) -> int:
    """The parent of process `pid`."""
    try:
        parent: int = links.baseline.query("parent", pid)
    except FileNotFoundError as error:
        if not links.baseline.is_remote and _lives(pid):
            raise step_error("probe", error, links.tier) from None
        raise
    return parent


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process, which exists
    return True
