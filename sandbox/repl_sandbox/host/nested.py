"""Zygotes beside the first: one forked by another with objects in it, and one for each session."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ..errors import SandboxClosed, SandboxError
from ..jail.processes import descendants
from ..protocol import control
from .cgroups import SessionCgroup
from .links import SessionFamily, SessionLinks
from .proc import ProcessQuery, status
from .zygote import SPAWN_TIMEOUT, ZygoteGone, ZygoteHandle, ZygoteProcess

# `NestedZygote`: the host's side of a zygote that another zygote forked.
#
# It has a socket of its own to the host, which is its lifeline, and answers as any zygote does.
# Only its end must be reported to the zygote that forked it, which alone can reap it.

# Seconds between two checks of a process that cannot be waited for.
_PAUSE = 0.01


class NestedZygote(ZygoteHandle):
    """A fork of `parent`'s zygote with the objects in file `parcel`; see
    `template.unpack_objects`.

    Raises:
        SandboxError: the parent is gone, or the objects could not be made.
    """

    def __init__(self, parent: ZygoteHandle, parcel: int, manifest: tuple[int, int]) -> None:
        host_end, zygote_end = control.lifeline()
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


def _first_message(host_end: socket.socket) -> control.Message:
    """Return the facts that the zygote sends when it can serve, else raise SandboxError."""
    try:
        answer = control.receive(host_end)
    except TimeoutError:
        raise SandboxError("the template of shared objects was not made in time") from None
    if answer is None:
        raise SandboxError("the template of shared objects ended; there may not be enough memory")
    if "failed" in answer:
        raise control.error_of(answer)
    return answer


def _forked_from(parent: ZygoteHandle, number: int) -> ZygoteProcess:
    """The process that `parent`'s zygote forked, by the process id it reported."""
    pid = number
    if parent._baseline.is_remote:
        return RemoteProcess(number, parent._baseline.query, parent.forget)
    if parent._baseline.container is not None:
        # A container has its own process ids; the kernel shows both.
        pid = next(
            (
                descendant
                for descendant in descendants(parent.pid)
                if _inner_pid(descendant) == number
            ),
            0,
        )
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


# `ZygotePerSession`: a zygote for each session, for example in a container of its own.
#
# To a sandbox it is one zygote, which starts another for each requested session, and ends it with
# the session.


class ZygotePerSession:
    """`start` starts a zygote; the first is started now, and serves the first session.

    Raises:
        SandboxError: as `ZygoteHandle`.
    """

    def __init__(self, start: Callable[[], ZygoteHandle]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._closed = False
        # Keyed by the object that a session and its branches share.
        self._serving: dict[SessionFamily, ZygoteHandle] = {}
        self._closing = ExitStack()
        first = self._spare = start()
        self._spares = [first]
        self.supports_snapshots = first.supports_snapshots
        self.tier, self.pid, self.interpreter = first.tier, first.pid, first.interpreter
        self.data_segment, self.privileged, self.process_limit = (
            first.data_segment,
            first.privileged,
            first.process_limit,
        )

    def private_memory(self) -> int:
        """As of `ZygoteHandle`."""
        return self._spare.private_memory()

    def begin(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: SessionCgroup | None = None,
        snapshots: int = -1,
        processes: int = 0,
    ) -> SessionLinks:
        """As of `ZygoteHandle`, when its zygote has started."""
        handle = self._next()
        try:
            links = handle.begin(slot, workspace, rlimits, group, snapshots, processes)
        except BaseException:
            handle.close()
            raise
        with self._lock:
            if not self._closed:
                self._serving[links.family] = handle
                return links
        handle.abandon(links)
        handle.close()
        raise SandboxClosed("the sandbox was closed meanwhile")

    def finish(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        try:
            self._zygote_of(links).finish(links)
        except BaseException:
            self._end(links)
            raise

    def end(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        try:
            self.kill(links)
        finally:
            links.close()

    def kill(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`; its zygote ends, and the container with it."""
        self._end(links)

    def request_end(self, links: SessionLinks) -> int | None:
        """As of `ZygoteHandle`: never, because ending a container takes its time."""
        return None

    @property
    def accepts_requests(self) -> bool:
        """As of `ZygoteHandle`: never, because starting a session starts a container."""
        return False

    @property
    def seconds(self) -> float:
        """As of `ZygoteHandle`."""
        return self._spare.seconds

    def abandon(self, links: SessionLinks) -> None:
        """As of `ZygoteHandle`."""
        links.close()
        self._end(links)

    def check_alive(self) -> None:
        """As of `ZygoteHandle`: others can be started as long as this is open."""
        if self._closed:
            raise SandboxClosed("the sandbox is closed")

    def nest(self, parcel: int, manifest: tuple[int, int]) -> ZygotePerSession:
        """Return one whose zygotes have the objects in file `parcel`, which the caller closes."""
        copy = os.dup(parcel)

        def start() -> ZygoteHandle:
            base = self._start()
            try:
                return _OwnedNestedZygote(base, copy, manifest)
            except BaseException:
                base.close()
                raise

        try:
            nest = ZygotePerSession(start)
        except BaseException:
            os.close(copy)
            raise
        nest._closing.callback(os.close, copy)
        return nest

    def close(self) -> None:
        """End all zygotes."""
        with self._lock:
            self._closed = True
            handles = [*self._spares, *self._serving.values()]
            self._spares, self._serving = [], {}
        with self._closing as closing:
            for handle in handles:
                closing.callback(handle.close)

    def _next(self) -> ZygoteHandle:
        with self._lock:
            if self._closed:
                raise SandboxClosed("the sandbox is closed")
            if self._spares:
                return self._spares.pop()
        return self._start()

    def _zygote_of(self, links: SessionLinks) -> ZygoteHandle:
        with self._lock:
            handle = self._serving.get(links.family)
        if handle is None:
            raise SandboxClosed("the session was ended meanwhile")
        return handle

    def _end(self, links: SessionLinks) -> None:
        with self._lock:
            handle = self._serving.pop(links.family, None)
        if handle is not None:
            handle.close()


class _OwnedNestedZygote(NestedZygote):
    """A fork of `base`'s zygote, which ends with it."""

    def __init__(self, base: ZygoteHandle, parcel: int, manifest: tuple[int, int]) -> None:
        super().__init__(base, parcel, manifest)
        self._base_handle = base

    def close(self) -> None:
        """End both."""
        try:
            super().close()
        finally:
            if hasattr(self, "_base_handle"):
                self._base_handle.close()
