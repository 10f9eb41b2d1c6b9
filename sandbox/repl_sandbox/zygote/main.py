"""The zygote: forks sessions from its template when the host asks, until the host is gone.

Started by exec with an environment made of nothing, never by forking the host. It has one thread
and one socket; end of file on that socket ends it, however the host left.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from ..errors import IsolationError, SandboxError
from ..jail import processes, remedies, rlimits, users
from ..jail.libc import fork_into
from ..jail.namespaces import FLAGS
from ..jail.recipe import Jail
from . import control
from .init import be_session
from .template import Template, build


class Zygote:
    """Serves one host."""

    def __init__(self, host: socket.socket, template: Template) -> None:
        self._host = host
        self._template = template
        self._planned: tuple[dict[str, int], list[tuple[int, tuple[int, int]]]] = ({}, [])
        self._sessions: dict[int, int] = {}  # number of the request: pid of the init

    def serve(self) -> NoReturn:
        """Answer requests until end of file."""
        while True:
            message, descriptors = control.receive_with_descriptors(self._host)
            if message is None:
                os._exit(0)
            try:
                self._answer(message, descriptors)
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _answer(self, message: control.Message, descriptors: list[int]) -> None:
        if message["op"] == "end":
            gone = self._end(message["session"])
            control.send(self._host, {"gone": gone, "number": message["number"]})
            return
        try:
            self._spawn(message, descriptors)
        except OSError as error:
            _tell(descriptors[0], IsolationError("jailed", "zygote", str(error)))
        except IsolationError as error:
            _tell(descriptors[0], error)

    def _spawn(self, message: control.Message, descriptors: list[int]) -> None:
        if processes.thread_count() != 1:
            raise IsolationError("jailed", "single thread", "the template has more than one")
        mapped, written = os.pipe2(os.O_CLOEXEC)
        slot = message["slot"] if self._template.privileged else None
        jail = Jail(
            slot,
            message["workspace"],
            self._rlimits(message["rlimits"]),
            self._template.last_capability,
            self._template.seal,
            self._template.files,
            mapped,
            self._template.covered,
        )
        control_fd, worker_fd, stdout, stderr = descriptors
        try:
            pid = fork_into(FLAGS)
        except OSError as error:
            os.close(mapped)
            os.close(written)
            raise remedies.failed("namespaces", error) from error
        if pid == 0:
            be_session(jail, (control_fd, worker_fd, stdout, stderr), self._template.worker)
        self._sessions[message["number"]] = pid
        os.close(mapped)
        try:
            self._map(message["number"], slot, written)
        finally:
            os.close(written)

    def _rlimits(self, limits: dict[str, int]) -> list[tuple[int, tuple[int, int]]]:
        """As `rlimits.plan`, which is the same for most sessions of a template."""
        if limits != self._planned[0]:
            self._planned = limits, rlimits.plan(limits)
        return self._planned[1]

    def _map(self, session: int, slot: int | None, written: int) -> None:
        """Write the id maps of the session's init, which waits for a byte in the pipe."""
        try:
            users.map_session(self._sessions[session], slot)
        except OSError as error:
            self._end(session)
            raise remedies.failed("id maps", error) from error
        try:
            os.write(written, b"11")  # for init and for the first worker
        except BrokenPipeError:
            pass  # init failed in an earlier step, and has told the host which

    def _end(self, session: int) -> bool:
        """Kill what request `session` made and wait until the kernel has ended all of it."""
        pid = self._sessions.pop(session, None)
        if pid is None:
            return False
        # Its init may have ended by itself; until it is waited for, the pid is nobody else's.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return True


def _tell(control_fd: int, error: IsolationError) -> None:
    """Say through a session's control socket why there is no session."""
    with socket.socket(fileno=os.dup(control_fd)) as session:
        try:
            control.send(session, control.failure(error))
        except OSError:
            pass  # the host has left, or init was there first


def refuse(fd: int, error: IsolationError) -> NoReturn:
    """Say on socket `fd`, to the request that configures the zygote, that there will be none."""
    with socket.socket(fileno=fd) as host:
        if (configuration := control.receive(host)) is not None:
            control.send(host, {**control.failure(error), "number": configuration["number"]})
    os._exit(1)


def serve(fd: int, *, privileged: bool) -> NoReturn:
    """Be the zygote on socket `fd`: the first message configures it, the answer says how it went.

    `privileged`: this process is root on the host, and not only of a user namespace of its own.
    """
    host = socket.socket(fileno=fd)
    # Its sessions decide about their own; the terminal's Ctrl-C is the host's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    configuration = control.receive(host)
    if configuration is None:
        os._exit(0)
    number = configuration["number"]
    try:
        template = build(configuration["preload"], configuration["mounts"], privileged=privileged)
    except IsolationError as error:
        control.send(host, {**control.failure(error), "number": number})
        os._exit(1)
    except SandboxError as error:
        control.send(host, {"failed": "", "message": str(error), "number": number})
        os._exit(1)
    facts = {"data_segment": template.data_segment, "privileged": template.privileged}
    control.send(host, {**facts, "number": number})
    Zygote(host, template).serve()
