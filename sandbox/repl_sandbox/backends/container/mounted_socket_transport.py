"""`MountedSocketTransport`: a zygote in a container connects to a socket that is mounted into the
container.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from ...errors import IsolationError
from ...protocol.control_channel import Lifeline
from ...zygote.client import zygote_process
from ...zygote.client.isolation_baseline import ContainerIsolation, IsolationBaseline
from ...zygote.client.nested_zygote import ForkedProcess
from . import container_isolation, container_output
from .rendezvous_socket import RendezvousSocket

if TYPE_CHECKING:
    from docker.models.containers import Container


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
    ) -> tuple[Lifeline, zygote_process.ZygoteProcess] | None:
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
        self._enclosure = container_isolation.probe(self._pid)
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
        output = b"" if self._output is None else container_output.rest(self._output)
        self.release()
        return output

    def release(self) -> None:
        """Release the container's output."""
        attached, self._output = self._output, None
        if attached is not None:
            container_output.close(attached)
