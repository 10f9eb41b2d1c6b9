"""`StreamSide`: the decisions in which the two ends of a stream differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .descriptor_passing import DescriptorDescription
from .stream_channels import Delivery, StreamChannel


class StreamSide(Protocol):
    """The policy of one side, which its `Multiplexer` consults."""

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """Return the pieces of frames in data read from the stream."""

    def may_send(self, channel: StreamChannel, description: DescriptorDescription) -> bool:
        """Return whether a process of this side may send such a descriptor on `channel`."""

    def may_receive(
        self, channel: StreamChannel | None, description: DescriptorDescription
    ) -> bool:
        """Return whether the other side may send such a descriptor; if not, the stream ends.

        `channel`: None if it is closed already.
        """

    def answer(self, number: int, payload: bytes) -> bytes | None:
        """Return the answer to data that is for this side itself; None if it is not."""

    def lend(self, number: int, fd: int) -> None:
        """Let the other side fill file `fd`, which this object owns from here on."""

    def fill_lent(self, number: int, payload: bytes) -> bool:
        """Write a part of a lent file; return False if the file is no longer wanted."""

    def peer_is(self, channel: StreamChannel, pid: int) -> None:
        """Note the sender's pid on `channel`, as the other side's kernel reports it."""

    def prepare_delivery(self, channel: StreamChannel, delivery: Delivery) -> None:
        """Change a delivery before it is queued."""

    def closed(self, channel: StreamChannel) -> bool:
        """Note that `channel` is closed; return whether the stream ends with it."""
