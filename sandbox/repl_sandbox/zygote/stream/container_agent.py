"""The container's end of a stream: its first process, which starts the zygote and ends with it.

It acts for the host inside the container: makes descriptors, and queries processes. The code of
sessions has the same user, and no access to this process's memory or descriptors.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from errno import E2BIG, EIO
from typing import Any, NoReturn

from ...jail import processes
from ...limits import process_queries
from ...protocol import control_channel
from . import container_probe, descriptor_passing, stream_frames
from .multiplexer import Multiplexer
from .stream_channels import StreamChannel

_LIFELINE, _LOOKS = 0, 1


def split_streams() -> int:
    """Fork: the child gets the zygote's socket; the parent, the container's first process,
    serves.
    """
    facts = container_probe.measure()
    ours, theirs = control_channel.pair()
    zygote = os.fork()
    if zygote == 0:
        ours.close()
        _let_stream_go()
        return theirs.detach()
    theirs.close()
    _serve(ours.detach(), zygote, facts)


def _let_stream_go() -> None:
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    os.close(nothing)


def _serve(lifeline: int, zygote: int, facts: dict[str, Any]) -> NoReturn:
    processes.hide_memory()
    # Orphans that no process of a session adopts are this process's to reap.
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    stream = os.dup(0), os.dup(1)
    _let_stream_go()
    try:
        agent = _Agent(*stream, {**facts, "zygote": zygote})
        agent.add(StreamChannel(_LIFELINE, descriptor_passing.MESSAGES, lifeline))
        agent.serve()
    finally:
        os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass


class _Agent(Multiplexer):
    """Serves the zygote's and the sessions' ends, and answers queries about processes."""

    def __init__(self, source: int, sink: int, facts: dict[str, Any]) -> None:
        super().__init__(source, sink, 3)
        self._facts = facts

    def accepts(
        self, channel: StreamChannel, descriptor: descriptor_passing.DescriptorDescription
    ) -> bool:
        """As of `Multiplexer`: files that were requested; workers send none."""
        return (
            channel.kind == descriptor_passing.MESSAGES
            and descriptor.kind == descriptor_passing.FILE
        )

    def takes(
        self, channel: StreamChannel | None, description: descriptor_passing.DescriptorDescription
    ) -> bool:
        """As of `Multiplexer`: all, because the host is trusted."""
        return True

    def is_gone(self, channel: StreamChannel) -> None:
        """As of `Multiplexer`: the container ends with the zygote."""
        if channel.number == _LIFELINE:
            self.ends = True

    def is_unknown(self, kind: int, number: int) -> None:
        """As of `Multiplexer`: returns a lent file."""
        if kind == stream_frames.CLOSE:
            for channel in self._channels.values():
                channel.let_go(number)

    def hear(self, number: int, payload: bytes) -> bool:
        """As of `Multiplexer`: the host's queries about processes."""
        if number != _LOOKS:
            return False
        self.say(stream_frames.CREDIT, _LOOKS, stream_frames.NUMBER.pack(len(payload)))
        self.say(stream_frames.DATA, _LOOKS, self._answer(payload))
        return True

    def _answer(self, question: bytes) -> bytes:
        name, *arguments = json.loads(question)
        try:
            if name == "facts":
                told: Any = self._facts
            else:
                call: Callable[..., Any] = process_queries.TABLE[name]
                told = call(*arguments)
            answer = json.dumps({"told": told}).encode()
        except OSError as error:
            return json.dumps({"errno": error.errno}).encode()
        # Boundary: the container must not end by a query that this kernel answers unexpectedly.
        except Exception:  # noqa: BLE001
            return json.dumps({"errno": EIO}).encode()
        if len(answer) > stream_frames.MOST // 2:
            return json.dumps({"errno": E2BIG}).encode()
        return answer
