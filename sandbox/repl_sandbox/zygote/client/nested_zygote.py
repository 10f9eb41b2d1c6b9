"""`NestedZygote`: the host's side of a zygote that another zygote forked.

It has a socket of its own to the host, which is its lifeline, and answers as any zygote does. Only
its end must be reported to the zygote that forked it, which alone can reap it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable

from ...errors import SandboxError
from ...jail.processes import descendants
from ...limits.process_queries import ProcessQuery
from ...protocol import control_channel
from .isolation_baseline import status
from .zygote_handle import SPAWN_TIMEOUT, ZygoteHandle
from .zygote_process import ZygoteProcess
from .zygote_requests import ZygoteGone

# Seconds between two checks of a process that cannot be waited for.
_PAUSE = 0.01


class NestedZygote(ZygoteHandle):
    """A fork of `parent`'s zygote with the objects in file `parcel`; see
    `shared_object_loader.unpack`.

    Raises:
        SandboxError: the parent is gone, or the objects could not be made.
    """

    def __init__(self, parent: ZygoteHandle, parcel: int, manifest: tuple[int, int]) -> None:
        host_end, zygote_end = control_channel.lifeline()
        self._connect(host_end, parent.tier)
        # One for the whole family, because their sessions' directories are in one directory.
        self._numbers = parent._numbers
        request = {"op": "nest", "manifest": list(manifest)}
        try:
            with zygote_end:
                forked = parent.ask(request, (zygote_end.fileno(), parcel))
            self._process = _forked_from(parent, forked["pid"])
        except BaseException:
            self._closed = True
            host_end.close()
            raise
        try:
            answer = _first_message(host_end)
            host_end.settimeout(SPAWN_TIMEOUT)
        except BaseException:
            self.close()
            raise
        baseline = parent._baseline
        self._read_report(
            {
                "data_segment": answer["data_segment"],
                "privileged": parent.privileged,
                "supports_snapshots": parent.supports_snapshots,
                "process_limit": parent.process_limit,
                "python": parent.interpreter[0],
                "implementation": parent.interpreter[1],
            },
            baseline.of(self._process.pid),
            parent._base,
        )


def _first_message(host_end: socket.socket) -> control_channel.Message:
    """Return the facts that the zygote sends when it can serve, else raise SandboxError."""
    try:
        answer = control_channel.receive(host_end)
    except TimeoutError:
        raise SandboxError("the template of shared objects was not made in time") from None
    if answer is None:
        raise SandboxError("the template of shared objects ended; there may not be enough memory")
    if "failed" in answer:
        raise control_channel.error_of(answer)
    return answer


def _forked_from(parent: ZygoteHandle, number: int) -> ZygoteProcess:
    """The process that `parent`'s zygote forked, by the process id it reported."""
    pid = number
    if parent._baseline.is_remote:
        return RemoteProcess(number, parent._baseline.query, parent.forget)
    if parent._baseline.container is not None:
        # A container has its own process ids; the kernel shows both.
        pid = next((each for each in descendants(parent.pid) if _inner_pid(each) == number), 0)
        if not pid:
            raise ZygoteGone
    return ForkedProcess(pid, lambda _: parent.forget(number))


def _inner_pid(pid: int) -> int:
    """The process id of `pid` in the innermost namespace that has the process; 0 if it is gone."""
    try:
        return int(status(pid)["NSpid"].split()[-1])
    except (OSError, KeyError):
        return 0


class RemoteProcess:
    """As `ForkedProcess`, for a process that only `query` can see."""

    def __init__(self, pid: int, query: ProcessQuery, forget: Callable[[int], None]) -> None:
        self.pid = pid
        self._query = query
        self._forget: Callable[[int], None] | None = forget

    def poll(self) -> int | None:
        """Return 0 if the process has ended, None while it lives."""
        try:
            return None if self._query("runs", self.pid) else 0
        except OSError:
            return 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; subprocess.TimeoutExpired after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._forget is not None and self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("zygote", timeout or 0)
            time.sleep(_PAUSE)
        forget, self._forget = self._forget, None
        if forget is not None:
            forget(self.pid)
        return 0

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(OSError):
            self._query("kill", self.pid)


class ForkedProcess:
    """Another process's child, with the methods of `subprocess.Popen` that are needed.

    `forget` is called with its pid when it has ended, to have the parent reap it.
    """

    def __init__(self, pid: int, forget: Callable[[int], None]) -> None:
        self.pid = pid
        self._forget = forget
        try:
            # Its parent reaps it only when told to, so the pid is not reused before.
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise ZygoteGone from None
        self._close_fd = weakref.finalize(self, os.close, self._fd)

    def poll(self) -> int | None:
        """Return 0 if the process has ended, None while it lives."""
        return 0 if not self._close_fd.alive or self._ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; subprocess.TimeoutExpired after `timeout` seconds."""
        if self._close_fd.alive:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired("zygote", timeout or 0)
            self._forget(self.pid)
            self._close_fd()
        return 0

    def kill(self) -> None:
        """Kill the process."""
        if self._close_fd.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else timeout * 1000))
