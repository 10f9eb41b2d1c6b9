"""The container's end of a stream: its first process, which starts the zygote and ends with it.

It acts for the host inside the container: makes descriptors, and queries processes. The code of
sessions has the same user, and no access to this process's memory or descriptors.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import E2BIG, EIO
from typing import Any, NoReturn

from ...host import proc
from ...jail import processes
from ...protocol import control
from . import container_probe, descriptor_passing, stream_frames
from .descriptor_passing import DescriptorDescription
from .multiplexer import Multiplexer
from .received_files import ReceivedFiles
from .stream_channels import Delivery, StreamChannel

_LIFELINE, _QUERIES = 0, 1
# Files from the host that belong to no message yet.
_MAX_FILES = 8


def split_streams() -> int:
    """Fork: the child gets the zygote's socket; the parent, the container's first process,
    serves.
    """
    facts = container_probe.measure()
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
        agent.add(StreamChannel(_LIFELINE, descriptor_passing.MESSAGES, lifeline))
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
        return (
            channel.kind == descriptor_passing.MESSAGES
            and description.kind == descriptor_passing.FILE
        )

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
        if len(answer) > stream_frames.MAX_PAYLOAD // 2:
            return json.dumps({"errno": E2BIG}).encode()
        return answer
