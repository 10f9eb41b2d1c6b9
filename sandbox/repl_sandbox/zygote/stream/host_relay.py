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

from . import descriptor_passing, stream_frames
from .multiplexer import Multiplexer, put
from .stream_channels import Delivery, StreamChannel

LIFELINE: Final = 0
LOOKS: Final = 1

_LAST_WORDS: Final = 4096


def serve(stream: int, lifeline: int, looks: int, most: int) -> None:
    """Relay between the host's two sockets and a stream until the stream ends.

    `most`: bytes of the files that the container may send for one request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    relay = HostRelay(stream, most)
    relay.add(StreamChannel(LIFELINE, descriptor_passing.MESSAGES, lifeline))
    relay.add(StreamChannel(LOOKS, descriptor_passing.MESSAGES, looks))
    try:
        relay.serve()
    except stream_frames.BrokenStreamError as error:
        relay.said.append(f"the container sent what is no frame: {error}\n".encode())
    with suppress(OSError):
        os.write(1, b"".join(relay.said)[-_LAST_WORDS:])


class HostRelay(Multiplexer):
    """Serves the host's ends. `said`: what the container wrote to its standard error."""

    most_files = 1

    def __init__(self, stream: int, most: int) -> None:
        super().__init__(stream, stream, 2)
        self._docker = stream_frames.Unwrapper()
        self._most = most
        self._taken: dict[int, int] = {}  # bytes of files, by channel
        self._lent: dict[int, int] = {}
        self.said: deque[bytes] = deque(maxlen=64)

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """As of `Multiplexer`."""
        for is_output, piece in self._docker.feed(data):
            if is_output:
                yield piece
            else:
                self.said.append(piece)

    def accepts(
        self, channel: StreamChannel, descriptor: descriptor_passing.DescriptorDescription
    ) -> bool:
        """As of `Multiplexer`: the host is trusted."""
        return True

    def takes(
        self, channel: StreamChannel | None, description: descriptor_passing.DescriptorDescription
    ) -> bool:
        """As of `Multiplexer`: only files, and only in an answer to a request for files."""
        if description.kind != descriptor_passing.FILE or channel is None:
            return description.kind == descriptor_passing.FILE
        if (
            channel.kind != descriptor_passing.MESSAGES
            or channel.ordered
            or channel.number in (LIFELINE, LOOKS)
        ):
            return False
        self._taken[channel.number] = self._taken.get(channel.number, 0) + description.size
        return self._taken[channel.number] <= self._most

    def check_size(self, size: int) -> int:
        """As of `Multiplexer`."""
        if size > self._most:
            raise stream_frames.BrokenStreamError(f"a file of {size} bytes")
        return size

    def lend(self, number: int, fd: int) -> None:
        """As of `Multiplexer`."""
        self._lent[number] = fd

    def is_filled(self, number: int, payload: bytes) -> None:
        """As of `Multiplexer`."""
        fd = self._lent.get(number)
        if fd is None:
            return
        try:
            put(fd, payload)
        except OSError:  # the host has released the file, by truncating it
            os.close(self._lent.pop(number))
            self.say(stream_frames.CLOSE, number)

    def peer_is(self, channel: StreamChannel, pid: int) -> None:
        """As of `Multiplexer`: sent with the next data, in a file, because the kernel reports
        another pid.
        """
        channel.peer = pid

    def deliver(self, channel: StreamChannel, delivery: Delivery) -> None:
        """As of `Multiplexer`."""
        if channel.peer and delivery.data:
            pid, channel.peer = channel.peer, 0
            delivery.descriptors.append(descriptor_passing.new_file(0))
            os.write(delivery.descriptors[-1], b"%d" % pid)
        super().deliver(channel, delivery)

    def is_gone(self, channel: StreamChannel) -> None:
        """As of `Multiplexer`."""
        self._taken.pop(channel.number, None)
