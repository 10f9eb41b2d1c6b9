"""The host's end of a stream: a process of its own, which the host ends as it ends a zygote.

It believes nothing of what comes by the stream: the container at the other end may be the code's by
now. Its last words, on standard output, are what the container wrote to its standard error.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from . import frames, given
from .channels import Channel, Delivery
from .mux import Mux, put

LIFELINE: Final = 0
LOOKS: Final = 1

_LAST_WORDS: Final = 4096


def serve(stream: int, lifeline: int, looks: int, most: int) -> None:
    """Carry between the host's two sockets and a stream until that ends.

    `most`: bytes of the files that the container may send for one request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    relay = Relay(stream, most)
    relay.add(Channel(LIFELINE, given.MESSAGES, lifeline))
    relay.add(Channel(LOOKS, given.MESSAGES, looks))
    try:
        relay.serve()
    except frames.BrokenStreamError as error:
        relay.said.append(f"the container sent what is no frame: {error}\n".encode())
    with suppress(OSError):
        os.write(1, b"".join(relay.said)[-_LAST_WORDS:])


class Relay(Mux):
    """Serves the host's ends. `said`: what the container wrote to its standard error."""

    most_files = 1

    def __init__(self, stream: int, most: int) -> None:
        super().__init__(stream, stream, 2)
        self._docker = frames.Unwrapper()
        self._most = most
        self._taken: dict[int, int] = {}  # bytes of files, by channel
        self._lent: dict[int, int] = {}
        self.said: deque[bytes] = deque(maxlen=64)

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """As of `Mux`."""
        for is_output, piece in self._docker.feed(data):
            if is_output:
                yield piece
            else:
                self.said.append(piece)

    def accepts(self, channel: Channel, descriptor: given.Description) -> bool:
        """As of `Mux`: the host is trusted."""
        return True

    def takes(self, channel: Channel | None, description: given.Description) -> bool:
        """As of `Mux`: only files, and only where a request for files is answered."""
        if description.kind != given.FILE or channel is None:
            return description.kind == given.FILE
        if channel.kind != given.MESSAGES or channel.ordered or channel.number in (LIFELINE, LOOKS):
            return False
        self._taken[channel.number] = self._taken.get(channel.number, 0) + description.size
        return self._taken[channel.number] <= self._most

    def check_size(self, size: int) -> int:
        """As of `Mux`."""
        if size > self._most:
            raise frames.BrokenStreamError(f"a file of {size} bytes")
        return size

    def lend(self, number: int, fd: int) -> None:
        """As of `Mux`."""
        self._lent[number] = fd

    def is_filled(self, number: int, payload: bytes) -> None:
        """As of `Mux`."""
        fd = self._lent.get(number)
        if fd is None:
            return
        try:
            put(fd, payload)
        except OSError:  # the host has let go of the file, by making it empty
            os.close(self._lent.pop(number))
            self.say(frames.CLOSE, number)

    def peer_is(self, channel: Channel, pid: int) -> None:
        """As of `Mux`: told with the next data, in a file, for the kernel tells other numbers."""
        channel.peer = pid

    def deliver(self, channel: Channel, delivery: Delivery) -> None:
        """As of `Mux`."""
        if channel.peer and delivery.data:
            pid, channel.peer = channel.peer, 0
            delivery.descriptors.append(given.new_file(0))
            os.write(delivery.descriptors[-1], b"%d" % pid)
        super().deliver(channel, delivery)

    def is_gone(self, channel: Channel) -> None:
        """As of `Mux`."""
        self._taken.pop(channel.number, None)
