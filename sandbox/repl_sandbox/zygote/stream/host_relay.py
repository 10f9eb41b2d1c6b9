"""The host's end of a stream: a process of its own, which the host ends as it ends a zygote.

Nothing that comes by the stream is trusted: the container at the other end may be under the control
of the code. The relay's last output is what the container wrote to its standard error.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from . import descriptors, frames
from .channels import Delivery, StreamChannel
from .descriptors import DescriptorDescription, ReceivedFiles, write_part
from .multiplexer import Multiplexer

LIFELINE: Final = 0
QUERIES: Final = 1

_LAST_OUTPUT: Final = 4096


def serve(stream: int, lifeline: int, queries: int, max_size: int) -> None:
    """Relay between the host's two sockets and a stream until the stream ends.

    `max_size`: bytes of the files that the container may send for one request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    side = HostSide(max_size)
    relay = Multiplexer(stream, stream, 2, side, ReceivedFiles(1, max_size))
    relay.add(StreamChannel(LIFELINE, descriptors.MESSAGES, lifeline))
    relay.add(StreamChannel(QUERIES, descriptors.MESSAGES, queries))
    try:
        relay.serve()
    except frames.BrokenStreamError as error:
        side.output.append(f"the container sent an invalid frame: {error}\n".encode())
    with suppress(OSError):
        os.write(1, b"".join(side.output)[-_LAST_OUTPUT:])


class HostSide:
    """The host's `StreamSide`. `output`: what the container wrote to its standard error."""

    def __init__(self, max_size: int) -> None:
        self._docker = frames.Unwrapper()
        self._max_size = max_size
        self._received: dict[int, int] = {}  # bytes of files, by channel
        self._lent: dict[int, int] = {}
        self.output: deque[bytes] = deque(maxlen=64)

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """As of `StreamSide`."""
        for is_output, piece in self._docker.feed(data):
            if is_output:
                yield piece
            else:
                self.output.append(piece)

    def may_send(self, channel: StreamChannel, description: DescriptorDescription) -> bool:
        """As of `StreamSide`: everything, because the host is trusted."""
        return True

    def may_receive(
        self, channel: StreamChannel | None, description: DescriptorDescription
    ) -> bool:
        """As of `StreamSide`: only files, and only in an answer to a request for files."""
        if description.kind != descriptors.FILE or channel is None:
            return description.kind == descriptors.FILE
        if (
            channel.kind != descriptors.MESSAGES
            or channel.ordered
            or channel.number in (LIFELINE, QUERIES)
        ):
            return False
        received = self._received.get(channel.number, 0) + description.size
        self._received[channel.number] = received
        return received <= self._max_size

    def answer(self, number: int, payload: bytes) -> bytes | None:
        """As of `StreamSide`: the container asks nothing."""
        return None

    def lend(self, number: int, fd: int) -> None:
        """As of `StreamSide`."""
        self._lent[number] = fd

    def fill_lent(self, number: int, payload: bytes) -> bool:
        """As of `StreamSide`: the host releases a file by truncating it."""
        fd = self._lent.get(number)
        if fd is None:
            return True
        try:
            write_part(fd, payload)
        except OSError:
            os.close(self._lent.pop(number))
            return False
        return True

    def peer_is(self, channel: StreamChannel, pid: int) -> None:
        """As of `StreamSide`: the next delivery passes it on."""
        channel.peer = pid

    def prepare_delivery(self, channel: StreamChannel, delivery: Delivery) -> None:
        """As of `StreamSide`: adds the sender's pid, in a file, because the kernel reports the
        relay's.
        """
        if channel.peer and delivery.data:
            pid, channel.peer = channel.peer, 0
            delivery.descriptors.append(descriptors.new_file(0))
            os.write(delivery.descriptors[-1], b"%d" % pid)

    def closed(self, channel: StreamChannel) -> bool:
        """As of `StreamSide`: the relay ends with the stream."""
        self._received.pop(channel.number, None)
        return False
