"""The container's end of a stream: its first process, which starts the zygote and ends with it.

It acts for the host inside the container: makes descriptors, and queries processes. The code of
sessions has the same user, and no access to this process's memory or descriptors.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import E2BIG, EIO
from typing import Any, NoReturn

from ...host import proc
from ...host.proc import NAMESPACES, namespace, read, status
from ...jail import processes
from ...protocol import control
from . import descriptors, frames
from .channels import Delivery, StreamChannel
from .descriptors import DescriptorDescription, ReceivedFiles
from .multiplexer import Multiplexer


def measure() -> dict[str, Any]:
    """Return facts as JSON; one that cannot be read is left out."""
    facts: dict[str, Any] = {"kernel": [platform.release(), platform.version()]}
    for name, fact in (
        ("status", lambda: status("self")),
        ("interfaces", _interfaces),
        ("read_only", lambda: bool(os.statvfs("/").f_flag & os.ST_RDONLY) or _is_read_only()),
        ("no_new_privs", processes.gains_no_privileges),
    ):
        try:
            facts[name] = fact()
        except OSError:
            continue
    facts["namespaces"] = {}
    for name in NAMESPACES:
        try:
            facts["namespaces"][name] = namespace("self", name)
        except OSError:
            continue
    return facts


def _interfaces() -> list[str]:
    """proc_pid_net(5), after two header lines."""
    return [line.partition(":")[0].strip() for line in read("self", "net/dev").splitlines()[2:]]


def _is_read_only() -> bool:
    """Return whether the mount table says so, if the kernel's statvfs(3) does not."""
    for line in read("self", "mounts").splitlines():
        _, place, _, options, *_ = line.split()
        if place == "/":
            return "ro" in options.split(",")
    return False


_LIFELINE, _QUERIES = 0, 1
# Files from the host that belong to no message yet.
_MAX_FILES = 8


def split_streams() -> int:
    """Fork: the child gets the zygote's socket; the parent, the container's first process,
    serves.
    """
    facts = measure()
    agent_end, zygote_end = control.pair()
    zygote = os.fork()
    if zygote == 0:
        agent_end.close()
        _close_streams()
        return zygote_end.detach()
    zygote_end.close()
    _serve(agent_end.detach(), zygote, facts)


def _close_streams() -> None:
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


def _serve(lifeline: int, zygote: int, facts: dict[str, Any]) -> NoReturn:
    processes.hide_memory()
    # Orphans that no process of a session adopts are this process's to reap.
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    stream = os.dup(0), os.dup(1)
    _close_streams()
    try:
        # The host is trusted: its files have any size.
        files = ReceivedFiles(_MAX_FILES, None)
        agent = Multiplexer(*stream, 3, AgentSide({**facts, "zygote": zygote}), files)
        agent.add(StreamChannel(_LIFELINE, descriptors.MESSAGES, lifeline))
        agent.serve()
    finally:
        os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass


class AgentSide:
    """The container's `StreamSide`, which also answers queries about processes."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """As of `StreamSide`: the daemon adds nothing to the container's input."""
        yield data

    def may_send(self, channel: StreamChannel, description: DescriptorDescription) -> bool:
        """As of `StreamSide`: files that were requested; workers send none."""
        return channel.kind == descriptors.MESSAGES and description.kind == descriptors.FILE

    def may_receive(
        self, channel: StreamChannel | None, description: DescriptorDescription
    ) -> bool:
        """As of `StreamSide`: everything, because the host is trusted."""
        return True

    def answer(self, number: int, payload: bytes) -> bytes | None:
        """As of `StreamSide`: the host's queries about processes."""
        return self._answer(payload) if number == _QUERIES else None

    def lend(self, number: int, fd: int) -> None:
        """As of `StreamSide`: the host fills no file of a session."""
        os.close(fd)

    def fill_lent(self, number: int, payload: bytes) -> bool:
        """As of `StreamSide`: nothing is lent."""
        return True

    def peer_is(self, channel: StreamChannel, pid: int) -> None:
        """As of `StreamSide`: processes here need not know the host's."""

    def prepare_delivery(self, channel: StreamChannel, delivery: Delivery) -> None:
        """As of `StreamSide`: nothing to change."""

    def closed(self, channel: StreamChannel) -> bool:
        """As of `StreamSide`: the container ends with the zygote."""
        return channel.number == _LIFELINE

    def _answer(self, question: bytes) -> bytes:
        name, *arguments = json.loads(question)
        try:
            if name == "facts":
                result: Any = self._facts
            else:
                call: Callable[..., Any] = proc.TABLE[name]
                result = call(*arguments)
            answer = json.dumps({"result": result}).encode()
        except OSError as error:
            return json.dumps({"errno": error.errno}).encode()
        # Boundary: the container must not end by a query that this kernel answers unexpectedly.
        except Exception:  # noqa: BLE001
            return json.dumps({"errno": EIO}).encode()
        if len(answer) > frames.MAX_PAYLOAD // 2:
            return json.dumps({"errno": E2BIG}).encode()
        return answer
