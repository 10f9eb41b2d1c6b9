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
from ..jail import processes, rlimits, users
from ..jail.libc import fork_into
from ..jail.namespaces import FLAGS
from ..jail.recipe import Jail
from . import control
from .init import be_init
from .template import Template, build


class Zygote:
    """Serves one host."""

    def __init__(self, host: socket.socket, template: Template) -> None:
        self._host = host
        self._template = template
        self._children: set[int] = set()

    def serve(self) -> NoReturn:
        """Answer requests until end of file."""
        while True:
            message, descriptors = control.receive_with_descriptors(self._host)
            if message is None:
                os._exit(0)
            try:
                answer = self._answer(message, descriptors)
            except OSError as error:
                answer = {"failed": "fork", "message": str(error)}
            finally:
                for fd in descriptors:
                    os.close(fd)
            control.send(self._host, answer)

    def _answer(self, message: control.Message, descriptors: list[int]) -> control.Message:
        if message["op"] == "spawn":
            return {"pid": self._spawn(message, descriptors)}
        return {"gone": self._end(message["pid"])}

    def _spawn(self, message: control.Message, descriptors: list[int]) -> int:
        if processes.thread_count() != 1:
            raise OSError(0, "the template has more than one thread")
        mapped, written = os.pipe2(os.O_CLOEXEC)
        slot = message["slot"] if self._template.privileged else None

        def wait_for_maps() -> None:
            if os.read(mapped, 1) != b"1":
                raise OSError(0, "the zygote could not write them")
            os.close(mapped)

        limits = rlimits.plan(message["rlimits"])
        pid = fork_into(FLAGS)
        if pid == 0:
            jail = Jail(
                slot,
                message["workspace"],
                limits,
                self._template.last_capability,
                self._template.seal,
                wait_for_maps,
                {mapped},
            )
            be_init(jail, tuple(descriptors), self._template.worker)  # type: ignore[arg-type]
        self._children.add(pid)
        os.close(mapped)
        try:
            users.map_session(pid, slot)
            os.write(written, b"1")
        finally:
            os.close(written)
        return pid

    def _end(self, pid: int) -> bool:
        """Kill the session whose init is `pid` and wait until the kernel has ended all of it."""
        if pid not in self._children:
            return False
        self._children.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return True


def serve(fd: int) -> NoReturn:
    """Be the zygote on socket `fd`: the first message configures it, the answer says how it went."""
    host = socket.socket(fileno=fd)
    # Its sessions decide about their own; the terminal's Ctrl-C is the host's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    configuration = control.receive(host)
    if configuration is None:
        os._exit(0)
    try:
        template = build(configuration["preload"], configuration["mounts"])
    except IsolationError as error:
        control.send(
            host, {"failed": error.step, "message": str(error.args[0]), "remedy": error.remedy}
        )
        os._exit(1)
    except SandboxError as error:
        control.send(host, {"failed": "", "message": str(error)})
        os._exit(1)
    control.send(host, {"data_segment": template.data_segment, "privileged": template.privileged})
    Zygote(host, template).serve()
