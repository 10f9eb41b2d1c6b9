"""The ways from the host to a zygote in a container: a mounted socket, or the standard streams."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from errno import ESRCH
from typing import TYPE_CHECKING, Any

from ..errors import IsolationError
from ..protocol import control
from ..protocol.control import Lifeline
from ..zygote.stream.frames import Unwrapper
from . import zygote
from .links import ContainerIsolation, IsolationBaseline
from .nested import ForkedProcess
from .proc import NAMESPACES, namespace, read, status
from .zygote import BOOT, ZygoteProcess

if TYPE_CHECKING:
    from docker.models.containers import Container


# The isolation of a container, as the kernel shows it of its first process, whatever the
# runtime's name.

# Without a user namespace the container's user is one of the host, never root.
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def probe_isolation(pid: int) -> ContainerIsolation:
    """Probe the isolation of process `pid`, which must not have hidden its memory yet.

    A layer that cannot be seen counts as missing. OSError: the process is gone.
    """
    inner, own = status(pid), status("self")
    filters = int(inner.get("Seccomp_filters", "0"))
    walls: dict[str, Callable[[], bool]] = {
        **{f"an own {name} namespace": _own(pid, name) for name in _NAMESPACES},
        "a read-only root": lambda: bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY),
        "no capabilities": lambda: all(int(inner[name], 16) == 0 for name in _CAPABILITIES),
        "no new privileges": lambda: inner["NoNewPrivs"] == "1",
        "a filter of system calls": lambda: (
            inner["Seccomp"] == "2" and filters > int(own.get("Seccomp_filters", "0"))
        ),
        "no network": lambda: set(_interfaces(pid)) <= {"lo"},
        "another user than root": lambda: "0" not in inner["Uid"].split(),
    }
    return ContainerIsolation(
        tuple(name for name, is_active in walls.items() if not _holds(is_active)), filters
    )


def _own(pid: int, name: str) -> Callable[[], bool]:
    return lambda: namespace(pid, name) != namespace("self", name)


def _holds(is_active: Callable[[], bool]) -> bool:
    try:
        return is_active()
    except (OSError, KeyError):
        return False


def _interfaces(pid: int) -> Iterator[str]:
    """The network interfaces that a process sees: proc_pid_net(5), after two header lines."""
    for line in read(pid, "net/dev").splitlines()[2:]:
        yield line.partition(":")[0].strip()


# The attached standard streams of a container, as the `docker` package provides them.

_READ = 1 << 16


def rest_of_output(attached: Any) -> bytes:
    """The output of a container that ends or has ended, since `attached` was made."""
    fd, unwrapper, output = output_descriptor(attached), Unwrapper(), b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while poller.poll():
        try:
            data = os.read(fd, _READ)
        except OSError:
            break
        if not data:
            break
        output += b"".join(piece for _, piece in unwrapper.feed(data))
    return output


def output_descriptor(attached: Any) -> int:
    """The descriptor of the stream, which the package owns."""
    return int(getattr(attached, "_sock", attached).fileno())


def close_output(attached: Any) -> None:
    """Close the response, its file and its socket, for which the package has no call."""
    below, answer = getattr(attached, "_sock", attached), getattr(attached, "_response", attached)
    for each in (answer, attached, below):
        each.close()


# `RendezvousSocket`: a socket in a directory that is mounted into a container, for its zygote to
# connect to.
#
# The kernel reports the process that connected, and 0 for a process that this system does not
# show. Only this user can enter the directory on the host. The mounted directory lies in it and
# is open to every user, so that the container's can connect.

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_NAME = "zygote"


def _bind(listener: socket.socket, folder: str) -> None:
    """Bind in `folder`, whose path may be longer than an address can be: unix(7)."""
    way = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{way}/{_NAME}")
    finally:
        os.close(way)


class RendezvousSocket:
    """A context manager, which removes the directory. `shown`: what to mount; `inside`: its path
    there.

    Raises:
        OSError: the directory or the socket cannot be made.
    """

    inside = "/run/repl-env"

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="repl-env-meeting-")
        try:
            self.shown = f"{self._folder}/shown"
            os.mkdir(self.shown)
            os.chmod(self.shown, 0o755)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            _bind(self._listener, self.shown)
            os.chmod(f"{self.shown}/{_NAME}", 0o666)
            self._listener.listen(1)
        except BaseException:
            self._remove()
            raise

    @property
    def address(self) -> str:
        """The path of the socket inside."""
        return f"{self.inside}/{_NAME}"

    def await_zygote(self, output: int, seconds: float) -> tuple[Lifeline, int] | None:
        """Return the connected socket and the pid of its peer; None if the container has ended.

        `output`: a descriptor that ends when the container ends. The pid is 0 for a process that
        this one cannot see.

        Raises:
            TimeoutError: nothing connected within `seconds`.
        """
        poller, until = select.poll(), time.monotonic() + seconds
        poller.register(self._listener, select.POLLIN)
        poller.register(output, select.POLLRDHUP)
        ready = [fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)]
        if not ready:
            raise TimeoutError
        if self._listener.fileno() not in ready:
            return None
        accepted, _ = self._listener.accept()
        credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Lifeline(fileno=accepted.detach()), _CREDENTIALS.unpack(credentials)[0]

    def close(self) -> None:
        """Accept no connections any more."""
        self._listener.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


# `MountedSocketTransport`: a zygote in a container connects to a socket that is mounted into the
# container.


class MountedSocketTransport:
    """Descriptors pass through the socket, and the container's processes appear in /proc."""

    takes_input = False

    def __init__(self, undo: ExitStack) -> None:
        self._meeting = undo.enter_context(closing(RendezvousSocket()))
        self.argument = self._meeting.address
        self.mounts = {self._meeting.inside: self._meeting.shown}
        self._enclosure = ContainerIsolation((), 0)
        self._pid = 0
        self._output: Any = None

    def attach(self, container: Container, undo: ExitStack) -> None:
        """Attach to the container's output, before it starts."""
        self._output = container.attach_socket(
            params={"stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
        )
        undo.callback(self.release)

    def meet(
        self, container: Container, seconds: float, forget: Callable[[], None], undo: ExitStack
    ) -> tuple[Lifeline, zygote.ZygoteProcess] | None:
        """After the start: return the connection to the zygote; None if the container has ended.

        Raises:
            TimeoutError: the zygote has not connected within `seconds`.
            IsolationError: the container's processes do not appear on this system.
        """
        met = self._meeting.await_zygote(self._output.fileno(), seconds)
        if met is None:
            return None
        lifeline, self._pid = met
        undo.callback(lifeline.close)
        container.reload()
        if not self._pid or container.attrs["State"]["Pid"] != self._pid:
            raise IsolationError(
                "container",
                "container",
                "its processes are not visible to this one",
                "Use a daemon on this system itself, and run this process beside the daemon, not "
                "in a container or a virtual machine; a runtime with a kernel of its own is known "
                "by its name (docs/design/tiers.md)",
            )
        child = ForkedProcess(self._pid, lambda _: forget())
        self._enclosure = probe_isolation(self._pid)
        return lifeline, child

    def connected(self) -> None:
        """Accept no further connection: the zygote is connected."""
        self._meeting.close()

    def baseline(self) -> IsolationBaseline:
        """The isolation baseline of the sessions."""
        self.release()
        return IsolationBaseline(self._pid, self._enclosure)

    def host_path(self, path: str) -> str:
        """The path by which `IsolationBaseline.look` finds the container's `path`."""
        return f"/proc/{self._pid}/root{path}"

    def output(self) -> bytes:
        """The output since the start of a container that ends or has ended."""
        output = b"" if self._output is None else rest_of_output(self._output)
        self.release()
        return output

    def release(self) -> None:
        """Release the container's output."""
        attached, self._output = self._output, None
        if attached is not None:
            close_output(attached)


# `StreamTransport`: the host reaches a zygote by the container's standard input and output.

_SECONDS = 30.0
_MAX_ANSWER = 1 << 17


class ProcessQueryClient:
    """Asks the first process of a container about processes in it; a `ProcessQuery`. Thread-safe.

    The container is not trusted: each answer has the expected type, or raises an error.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        _open.add(self)

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Return the answer; OSError if there is none."""
        answer = self.ask(name, *(_plain(each) for each in arguments))
        if not isinstance(answer, _KINDS.get(name, object)) or isinstance(answer, bool) != (
            name in _YES_OR_NO
        ):
            raise OSError(ESRCH, "the container sent an answer of another type")
        if isinstance(answer, list) and not all(type(each) is int for each in answer):
            raise OSError(ESRCH, "the container sent an answer of another type")
        return answer

    def ask(self, name: str, *arguments: Any, seconds: float = _SECONDS) -> Any:
        """As above, for any JSON."""
        with self._lock:
            try:
                self._socket.settimeout(seconds)
                self._socket.send(json.dumps([name, *arguments]).encode())
                answer = json.loads(self._socket.recv(_MAX_ANSWER) or b"{}")
            except (OSError, ValueError, RecursionError) as error:
                self._socket.close()  # a late answer would be taken for the next one
                raise OSError(ESRCH, "the container does not answer") from error
        if not isinstance(answer, dict) or "result" not in answer:
            errno = answer.get("errno") if isinstance(answer, dict) else None
            number = errno if type(errno) is int else ESRCH
            raise OSError(number, os.strerror(number))
        return answer["result"]

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("shared_with_others", "parent", "private", "proportional", "resident"), int),
    **dict.fromkeys(("address_space", "mappings", "running", "threads", "use"), int),
    **dict.fromkeys(("cpu_clock", "cpu_seconds"), (int, float)),
    **dict.fromkeys(("snapshots", "descendants"), list),
    **dict.fromkeys(("namespace", "read"), str),
    "status": dict,
}
_YES_OR_NO = ("is_read_only", "runs")


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else list(value)


_open: weakref.WeakSet[ProcessQueryClient] = weakref.WeakSet()


def _drop_all() -> None:
    for client in list(_open):
        client.close()


os.register_at_fork(after_in_child=_drop_all)


class RelayProcess:
    """The relay of a container, which lives as long as the stream; see `ZygoteProcess`.

    `forget` is called with the container's last output when the relay has ended.
    """

    def __init__(self, process: subprocess.Popen[bytes], forget: Callable[[bytes], None]) -> None:
        self._process = process
        self._forget: Callable[[bytes], None] | None = forget

    @property
    def pid(self) -> int:
        """The relay's process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """None while the relay lives."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the relay; subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._process.wait(timeout)
        forget, self._forget = self._forget, None
        if forget is not None and self._process.stdout is not None:
            with self._process.stdout as stdout:
                output = stdout.read()
            forget(output)
        return status

    def kill(self) -> None:
        """Kill the relay."""
        self._process.kill()


class StreamTransport:
    """A relay process carries the data that would otherwise pass through sockets.

    `max_size`: bytes of the files that the container may send for one request.
    """

    takes_input = True
    argument = "stream"

    def __init__(self, max_size: int) -> None:
        self.mounts: dict[str, str] = {}
        self._max_size = max_size
        self._attached: Any = None
        self._last_output = b""
        self._queries: ProcessQueryClient | None = None
        self._relay: RelayProcess | None = None
        self._facts: dict[str, Any] = {}

    def attach(self, container: Container, undo: ExitStack) -> None:
        """Attach to the container's streams, before it starts."""
        self._attached = container.attach_socket(
            params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
        )
        undo.callback(self.release)

    def meet(
        self, container: Container, seconds: float, forget: Callable[[], None], undo: ExitStack
    ) -> tuple[Lifeline, ZygoteProcess] | None:
        """As of `MountedSocketTransport`."""
        lifeline, self._queries = self._start(forget)
        undo.callback(lifeline.close)
        relay = self._relay
        assert relay is not None
        undo.callback(relay.wait)
        undo.callback(relay.kill)
        self.release()
        try:
            self._facts = self._queries.ask("facts", seconds=seconds)
        except OSError as error:
            if isinstance(error.__cause__, TimeoutError):
                raise TimeoutError from error
            relay.wait()
            return None
        return lifeline, relay

    def _start(self, forget: Callable[[], None]) -> tuple[Lifeline, ProcessQueryClient]:
        host_end, relay_end = control.lifeline()
        query_end, relay_query_end = control.pair()
        with relay_end, relay_query_end:
            ends = (
                output_descriptor(self._attached),
                relay_end.fileno(),
                relay_query_end.fileno(),
            )
            relay = subprocess.Popen(
                [sys.executable, "-I", BOOT, "relay", *map(str, (*ends, self._max_size))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=ends,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._relay = RelayProcess(relay, lambda output: self._is_over(output, forget))
        return host_end, ProcessQueryClient(query_end)

    def _is_over(self, output: bytes, forget: Callable[[], None]) -> None:
        self._last_output = output
        if self._queries is not None:
            self._queries.close()
        forget()

    def connected(self) -> None:
        """As of `MountedSocketTransport`."""

    def baseline(self) -> IsolationBaseline:
        """As of `MountedSocketTransport`."""
        found = self._facts.get("zygote")
        zygote = found if type(found) is int else 0
        return IsolationBaseline(zygote, container_isolation(self._facts), self._queries)

    def host_path(self, path: str) -> str:
        """As of `MountedSocketTransport`."""
        return path

    def output(self) -> bytes:
        """As of `MountedSocketTransport`."""
        return self._last_output

    def release(self) -> None:
        """As of `MountedSocketTransport`: the relay has the stream."""
        attached, self._attached = self._attached, None
        if attached is not None:
            close_output(attached)


def container_isolation(facts: dict[str, Any]) -> ContainerIsolation:
    """The isolation of a container by its first process's observations, whatever the runtime's
    name.

    A kernel of its own, which reports another identity than this system's, needs no namespaces and
    no filter: it neither runs this kernel's processes nor passes on their system calls.
    """
    inner = facts.get("status") or {}
    own_kernel = facts.get("kernel") != [platform.release(), platform.version()]
    filters, own_status = int(inner.get("Seccomp_filters", "0")), status("self")
    found = facts.get("namespaces") or {}
    walls = {
        **{
            f"an own {name} namespace": own_kernel
            or found.get(name) not in (None, namespace("self", name))
            for name in NAMESPACES
            if name not in ("user", "cgroup")
        },
        "a read-only root": facts.get("read_only") is True,
        "no capabilities": bool(inner)
        and all(int(inner.get(name, "0"), 16) == 0 for name in _CAPABILITIES),
        "no new privileges": facts.get("no_new_privs") == 1,
        "a filter of system calls": own_kernel
        or (inner.get("Seccomp") == "2" and filters > int(own_status.get("Seccomp_filters", "0"))),
        "no network": set(facts.get("interfaces", ["?"])) <= {"lo"},
        "another user than root": "0" not in inner.get("Uid", "0").split(),
    }
    missing = tuple(name for name, is_active in walls.items() if not is_active)
    return ContainerIsolation(missing, filters, own_kernel=own_kernel)
