"""`StreamTransport`: the host reaches a zygote by the container's standard input and output."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from errno import ESRCH
from typing import TYPE_CHECKING, Any

from ...limits.process_queries import NAMESPACES, namespace, status
from ...protocol import control_channel
from ...protocol.control_channel import Lifeline
from ...zygote.client import zygote_process
from ...zygote.client.isolation_baseline import ContainerIsolation, IsolationBaseline
from ...zygote.client.zygote_process import BOOT
from . import container_output

if TYPE_CHECKING:
    from docker.models.containers import Container

_SECONDS = 30.0
_MAX_ANSWER = 1 << 17
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


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
    **dict.fromkeys(("running", "threads", "use"), int),
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
    ) -> tuple[Lifeline, zygote_process.ZygoteProcess] | None:
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
        host_end, relay_end = control_channel.lifeline()
        query_end, relay_query_end = control_channel.pair()
        with relay_end, relay_query_end:
            ends = (
                container_output.descriptor(self._attached),
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
            container_output.close(attached)


def container_isolation(facts: dict[str, Any]) -> ContainerIsolation:
    """The isolation of a container by its first process's observations, whatever the runtime's
    name.

    A kernel of its own, which reports another identity than this system's, needs no namespaces and
    no filter: it neither runs this kernel's processes nor passes on their system calls.
    """
    host_path = facts.get("status") or {}
    own_kernel = facts.get("kernel") != [platform.release(), platform.version()]
    filters, own_status = int(host_path.get("Seccomp_filters", "0")), status("self")
    found = facts.get("namespaces") or {}
    walls = {
        **{
            f"an own {name} namespace": own_kernel
            or found.get(name) not in (None, namespace("self", name))
            for name in NAMESPACES
            if name not in ("user", "cgroup")
        },
        "a read-only root": facts.get("read_only") is True,
        "no capabilities": bool(host_path)
        and all(int(host_path.get(name, "0"), 16) == 0 for name in _CAPABILITIES),
        "no new privileges": facts.get("no_new_privs") == 1,
        "a filter of system calls": own_kernel
        or (
            host_path.get("Seccomp") == "2"
            and filters > int(own_status.get("Seccomp_filters", "0"))
        ),
        "no network": set(facts.get("interfaces", ["?"])) <= {"lo"},
        "another user than root": "0" not in host_path.get("Uid", "0").split(),
    }
    missing = tuple(name for name, is_active in walls.items() if not is_active)
    return ContainerIsolation(missing, filters, own_kernel=own_kernel)
