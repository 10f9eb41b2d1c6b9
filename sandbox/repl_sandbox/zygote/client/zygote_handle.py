"""`ZygoteHandle`: the host's side of a zygote: starts it, requests sessions, holds its lifeline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from ...errors import SandboxClosed, SandboxError
from ...language_policy import Policy
from ...limits.cgroups.session_cgroup import SessionCgroup
from ...protocol import control_channel
from ...protocol.connection import HostConnection
from .. import spawn_requests
from . import zygote_process
from .isolation_baseline import IsolationBaseline
from .session_endpoints import SessionEndpoints
from .session_handshake import await_ready
from .session_links import SessionLinks
from .zygote_requests import ZygoteGone, ZygoteRequests

# An interpreter starts in 10 ms, numpy with pandas takes 1 s; importing torch from a cold disk can
# take a minute.
START_TIMEOUT = 120.0
# A session takes 3 ms; on a machine that swaps or is overloaded a thousand times that.
SPAWN_TIMEOUT = 30.0
# For ending all sessions and removing their directories, where the kernel does not.
_LEAVE_TIMEOUT = 30.0

# Bytes of settings: the rest of the message is their names and a number.
_MAX_SETTINGS = control_channel.MAX_MESSAGE - 256


class ZygoteHandle:
    """One zygote. Thread-safe; unusable in a forked child."""

    def __init__(
        self,
        python: str | None,
        preload: Sequence[str],
        mounts: Mapping[str, str],
        policy: Policy | None = None,
        tier: str = "jailed",
        hash_seed: int | None = None,
        launch: Callable[[], zygote_process.ZygoteLauncher] | None = None,
    ) -> None:
        launcher = (
            launch() if launch else zygote_process.LocalLauncher(python or sys.executable, tier)
        )
        configuration = {
            "preload": list(preload),
            "mounts": dict(mounts),
            "policy": None if policy is None else asdict(policy),
            "place": launcher.session_root,
        }
        _check_size(configuration)
        self._numbers = itertools.count(1)
        host_end, self._process = launcher.start(hash_seed)
        self._connect(host_end, tier)
        try:
            answer = self._configure(configuration)
            host_end.settimeout(SPAWN_TIMEOUT)
        except ZygoteGone as error:
            self.close()
            raise launcher.start_error(self._process, preload) from error
        except BaseException:
            self.close()
            raise
        base = launcher.host_path(answer["base"]) if answer["base"] else ""
        self._read_report(answer, launcher.baseline(self._process), base)

    def _connect(self, host_end: socket.socket, tier: str) -> None:
        """Start the conversation on socket `host_end`, which is the zygote's lifeline."""
        host_end.settimeout(START_TIMEOUT)
        self.tier = tier
        self._requests = ZygoteRequests(host_end)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        _alive.add(self)

    def _read_report(
        self, answer: control_channel.Message, baseline: IsolationBaseline, base: str
    ) -> None:
        """Read a zygote's report of itself when it can serve.

        `base`: the host's path of the directory of the sessions' directories.
        """
        self._baseline = baseline
        self.data_segment: int = answer["data_segment"]
        self.privileged: bool = answer["privileged"]
        # True if snapshots of a worker can take over: its kernel makes siblings by clone(2).
        self.supports_snapshots: bool = answer.get("supports_snapshots", True) is True
        self._base = base
        self.interpreter: tuple[str, str] = (answer["python"], answer["implementation"])
        # The limit of processes of a session that shares its user with the host; 0 if none does.
        self.process_limit: int = answer["process_limit"]

    @property
    def pid(self) -> int:
        """The zygote's process id, in its namespace."""
        return self._baseline.template

    def private_memory(self) -> int:
        """Bytes of anonymous memory of the zygote."""
        memory: int = self._baseline.query("private", self.pid)
        return memory

    def begin(
        self,
        slot: int,
        workspace: int,
        rlimits: Mapping[str, int],
        group: SessionCgroup | None = None,
        snapshots: int = -1,
        processes: int = 0,
    ) -> SessionLinks:
        """Request a session without waiting for it; `finish` must follow.

        `group` is the cgroup of the session from its first moment; it is released in any case.
        `snapshots` is the number of snapshots kept besides the current one, -1 for not even that.
        `processes`: the limit where neither a user of its own nor a cgroup limits them.
        """
        try:
            ends = SessionEndpoints()
        except OSError:
            if group is not None:
                group.release()
            raise
        number, version = next(self._numbers), 0 if group is None else group.version
        settings = spawn_requests.settings(workspace, rlimits, snapshots, processes)
        request = spawn_requests.spawn(number, slot, version, settings)
        links = SessionLinks(number, 0, 0, *ends.take(), HostConnection(), self._baseline, group)
        links.folder = f"{self._base}/{number}" if self._base else ""
        links.tier = self.tier
        links.interpreter = self.interpreter
        try:
            with _entrance(group) as entrance:
                self._check_open()
                self._requests.send(request, (*ends.remote, *entrance))
        except BaseException:
            self.abandon(links)
            raise
        finally:
            ends.close_remote()
        return links

    def finish(self, links: SessionLinks) -> None:
        """Wait until the requested session is ready, unless it is already."""
        if links.worker_pid:
            return
        try:
            # Waits for the session and not for the zygote, so callers need not wait for one
            # another.
            if not await_ready(links, self._requests.seconds):
                self.check_alive()
                raise SandboxError("the session did not start: its init is gone")
            # The kernel ends a session with its zygote from the session's first moment. If the
            # zygote had ended before, nothing would end the session.
            self.check_alive()
        except OSError as error:  # its processes ended meanwhile
            self.abandon(links)
            self.check_alive()
            raise SandboxError(f"the session ended as it started: {error.strerror}") from error
        except BaseException:
            self.abandon(links)
            raise

    def end(self, links: SessionLinks) -> None:
        """End a session: when this returns, all its processes are gone."""
        try:
            self.kill(links)
        finally:
            links.close()

    def kill(self, links: SessionLinks) -> None:
        """End a session's processes, and leave its links to callers that still read them."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            number = next(self._numbers)
            self._ask(number, spawn_requests.end(number, links.number))
        except ZygoteGone:
            pass  # and the session with it: the kernel kills each init when its zygote ends

    def request_end(self, links: SessionLinks) -> int | None:
        """Request the end of a session without waiting; return a descriptor that reports it.

        None if the end cannot be observed so, or the zygote is busy: then nothing may have been
        done.
        """
        if self.tier != "jailed" or self._closed or os.getpid() != self._pid:
            return None  # elsewhere a session may outlive its init
        try:
            pidfd = os.pidfd_open(links.pid)
        except OSError:
            return None
        # While a process has the other end, the pid is still that of the session's init, with which
        # the kernel ends all processes of its namespace.
        if links.ended or not self._requests.try_send(
            spawn_requests.end(spawn_requests.UNANSWERED, links.number)
        ):
            os.close(pidfd)
            return None
        return pidfd

    @property
    def accepts_requests(self) -> bool:
        """True if a request can be sent without waiting."""
        return self._requests.can_send

    @property
    def seconds(self) -> float:
        """The limit in seconds for the start of a session."""
        return self._requests.seconds

    def abandon(self, links: SessionLinks) -> None:
        """End a session that did not start, without waiting: the zygote may hang."""
        links.close()
        # If the request cannot be sent, the zygote is gone, or ends the session when the start is
        # done.
        self._requests.send_unless_gone(spawn_requests.end(spawn_requests.UNANSWERED, links.number))

    def forget(self, pid: int) -> None:
        """Have the zygote reap a nested one with this pid, which has ended."""
        try:
            self.ask({"op": "forget", "nested": pid})
        except SandboxError:
            pass  # it is gone itself, and its successor reaps the other

    def ask(
        self, question: control_channel.Message, descriptors: Sequence[int] = ()
    ) -> control_channel.Message:
        """Return the zygote's answer to a rare request.

        Raises:
            SandboxError: the zygote is gone, or could not do it.
        """
        number = next(self._numbers)
        reply = self._ask(number, spawn_requests.ask(number, question), descriptors)
        answer: control_channel.Message = json.loads(reply)
        if "failed" in answer:
            raise control_channel.error_of(answer)
        return answer

    def check_alive(self) -> None:
        """Raise SandboxClosed if the zygote is gone, and so all its sessions, or is about to end.

        A process that the kernel ends closes its descriptors first, and exists for a while yet.
        """
        if self._requests.is_over or self._process.poll() is not None:
            raise ZygoteGone

    def _check_open(self) -> None:
        if self._closed or os.getpid() != self._pid:
            raise SandboxClosed(
                "the sandbox is closed, or belongs to the process that forked this one"
            )

    def _configure(self, configuration: control_channel.Message) -> control_channel.Message:
        """Send the first request: build the template."""
        number = next(self._numbers)
        request = json.dumps({**configuration, "number": number}).encode()
        answer: control_channel.Message = json.loads(self._ask(number, request))
        if "failed" in answer:
            raise control_channel.error_of(answer)
        return answer

    def _ask(self, number: int, request: bytes, descriptors: Sequence[int] = ()) -> bytes:
        self._check_open()
        return self._requests.ask(number, request, descriptors)

    def close(self) -> None:
        """End the zygote and all its sessions. In a forked child: only close the socket."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._pid:
            self._requests.forked()
            return
        self._requests.hang_up()
        if self.tier != "jailed":
            # It ends its sessions, which the kernel would not.
            try:
                self._process.wait(_LEAVE_TIMEOUT)
            except subprocess.TimeoutExpired:
                pass
        self._end_process()
        self._requests.close()

    def _end_process(self) -> None:
        """Kill the zygote, whose lifeline is closed, if it hangs."""
        try:
            self._process.kill()
        except PermissionError:
            # This process has given up the user that it started the zygote as. The zygote ends by
            # itself, unless it hangs.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_TIMEOUT)
            return
        self._process.wait()

    def forked(self) -> None:
        """In a child of the host: close the lifeline, so that only the host has it."""
        self._closed = True
        self._requests.forked()


def _check_size(configuration: control_channel.Message) -> None:
    """Raise ValueError, naming the largest setting, if the settings exceed one message."""
    sizes = {name: len(json.dumps(value)) for name, value in configuration.items()}
    if sum(sizes.values()) > _MAX_SETTINGS:
        name = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{name}: {sizes[name]:,} bytes; the limit of all settings of a template together is "
            f"{_MAX_SETTINGS:,}"
        )


def _entrance(group: SessionCgroup | None) -> AbstractContextManager[Sequence[int]]:
    return contextlib.nullcontext(()) if group is None else group.entrance()


_alive: weakref.WeakSet[ZygoteHandle] = weakref.WeakSet()


def _drop_all() -> None:
    for handle in list(_alive):
        handle.forked()


os.register_at_fork(after_in_child=_drop_all)
