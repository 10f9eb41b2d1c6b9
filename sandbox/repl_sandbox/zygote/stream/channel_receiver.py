"""`ChannelReceiver`: delivers the frames of the other side to this side's processes."""

from __future__ import annotations

import json
import os
import struct

from . import descriptor_passing, stream_frames
from .channel_table import ChannelTable
from .descriptor_passing import DescriptorDescription
from .frame_writer import FrameWriter
from .received_files import ReceivedFiles
from .stream_channels import WINDOW, ChannelGroup, Delivery, StreamChannel
from .stream_frames import BrokenStreamError
from .stream_side import StreamSide


class ChannelReceiver:
    """Deliveries on `channels`, with the files of `files`."""

    def __init__(
        self, channels: ChannelTable, writer: FrameWriter, side: StreamSide, files: ReceivedFiles
    ) -> None:
        self._channels, self._writer, self._side, self._files = channels, writer, side, files

    def receive_descriptors(self, channel: StreamChannel | None, payload: bytes) -> None:
        """Deliver data with descriptors; raise BrokenStreamError if one is not permitted."""
        descriptions, data = _parsed(payload)
        delivery = Delivery(data)
        group = ChannelGroup.of(channel, descriptions)
        with_pipes = descriptor_passing.has_pipes(descriptions)
        for description in descriptions:
            if not self._side.may_receive(channel, description):
                raise BrokenStreamError(f"a descriptor of kind {description.kind}")
            if description.kind == descriptor_passing.FILE:
                delivery.descriptors.append(self._finish_file(channel, description))
                continue
            own, passed = descriptor_passing.make_ends(description)
            delivery.descriptors.append(passed)
            kind = descriptor_passing.other_end(description.kind)
            needs_sender = kind == descriptor_passing.BYTES
            self._channels.open(
                description.number,
                kind,
                own,
                group,
                with_pipes=with_pipes,
                needs_sender=needs_sender,
            )
        if channel is None:
            delivery.drop()  # the processes with the other ends see that they are closed
        else:
            self.deliver(channel, delivery)

    def _finish_file(
        self, channel: StreamChannel | None, description: DescriptorDescription
    ) -> int:
        fd = self._files.finish(description)
        if description.comes_back and channel is not None:
            channel.files_to_return.append((description.number, os.dup(fd)))
        return fd

    def deliver(self, channel: StreamChannel, delivery: Delivery) -> None:
        """Deliver data, after everything that its session has written before."""
        self._side.prepare_delivery(channel, delivery)
        channel.received += len(delivery.data)
        if channel.received - channel.delivered > WINDOW + 2 * stream_frames.MAX_PAYLOAD:
            raise BrokenStreamError("more data than the window of a channel permits")
        if channel.ordered and channel.group is not None:
            delivery.after = channel.group.undelivered()
        channel.pending.append(delivery)
        self.write(channel)

    def write(self, channel: StreamChannel) -> None:
        """Write as much as possible now."""
        while channel.pending:
            delivery = channel.pending[0]
            has_reader = channel.group is None or channel.group.has_reader
            if has_reader and not delivery.is_due():
                break
            if delivery.ends:
                self._end(channel, closes=delivery.closes)
                return
            try:
                sent = channel.send(delivery)
            except BlockingIOError:
                break
            except OSError:
                self._channels.close(channel)
                return
            delivery.drop()
            delivery.data = delivery.data[sent:]
            channel.delivered += sent
            channel.unacknowledged += sent
            if not delivery.data:
                channel.pending.popleft()
        self._acknowledge(channel)
        self._channels.rearm(channel)
        if channel.kind == descriptor_passing.WRITTEN:
            self.continue_after(channel)

    def continue_after(self, pipe: StreamChannel) -> None:
        """Continue deliveries that wait for this pipe."""
        if pipe.group is not None:
            for channel in list(pipe.group.ordered):
                if channel.pending and not channel.closed:
                    self.write(channel)

    def _acknowledge(self, channel: StreamChannel) -> None:
        """Acknowledge delivered bytes to the other side."""
        if channel.unacknowledged > WINDOW // 4 or (channel.unacknowledged and not channel.pending):
            unacknowledged, channel.unacknowledged = channel.unacknowledged, 0
            self._writer.send_number(stream_frames.CREDIT, channel.number, unacknowledged)

    def _end(self, channel: StreamChannel, *, closes: bool) -> None:
        channel.pending.popleft()
        if closes or channel.all_read:
            self._channels.close(channel, notify=not closes)
        else:
            channel.end()
            self._channels.rearm(channel)


def _parsed(payload: bytes) -> tuple[list[DescriptorDescription], bytes]:
    """The descriptions of the descriptors in a frame, and the data that follows them."""
    try:
        (length,) = stream_frames.LENGTH.unpack_from(payload)
        start = stream_frames.LENGTH.size
        rows = json.loads(payload[start : start + length])
        return [descriptor_passing.described(row) for row in rows], payload[start + length :]
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise BrokenStreamError(f"the description of descriptors is invalid: {error}") from error
