"""`ChannelSender`: sends what this side's processes write, with their descriptors, as frames."""

from __future__ import annotations

import itertools
import json
import os
import select
from collections.abc import Sequence

from . import descriptor_passing, stream_frames
from .channel_table import ChannelTable
from .descriptor_passing import DescriptorDescription
from .frame_writer import FrameWriter
from .stream_channels import ChannelGroup, StreamChannel
from .stream_side import StreamSide


class ChannelSender:
    """`first`: the first channel number of this side; the other side has the numbers between."""

    def __init__(
        self, channels: ChannelTable, writer: FrameWriter, side: StreamSide, first: int
    ) -> None:
        self._channels, self._writer, self._side = channels, writer, side
        self._numbers = itertools.count(first, 2)

    def read(self, channel: StreamChannel) -> None:
        """Read from a channel that is ready, and send the data."""
        if channel.reads and self._is_in_turn(channel):
            self._take(channel)

    def credit(self, channel: StreamChannel, size: int) -> None:
        """Note that the other side has delivered `size` bytes."""
        channel.in_transit = max(0, channel.in_transit - size)
        if channel.kind == descriptor_passing.READ and channel.group is not None:
            for each in channel.group.ordered:
                if each.waits_for and not each.closed and self._is_in_turn(each):
                    self._channels.rearm(each)
        self._channels.rearm(channel)

    def _is_in_turn(self, channel: StreamChannel) -> bool:
        """Return whether all has been sent that was in the pipes before data came on a socket.

        A session's message that a cell has ended must follow the cell's output.
        """
        if not channel.ordered or channel.group is None:
            return True
        if not channel.waits_for:
            channel.waits_for = channel.group.unsent()
        for pipe, offset in channel.waits_for:
            while pipe.sent < offset and pipe.reads and not pipe.closed:
                if not self._take(pipe):
                    break
            self._channels.rearm(pipe)
        channel.waits_for = [
            (pipe, offset)
            for pipe, offset in channel.waits_for
            if pipe.sent < offset and not pipe.closed and not pipe.all_read
        ]
        return not channel.waits_for

    def _take(self, channel: StreamChannel) -> bool:
        """Read once and send; return whether there was data."""
        if channel.closed:
            return False
        try:
            data, descriptors, pid = channel.receive()
        except BlockingIOError:
            return False
        if not data:
            self._end(channel)
            return False
        if pid and not channel.peer:
            channel.peer = pid
            self._writer.send_number(stream_frames.PEER, channel.number, pid)
        for number, fd in channel.files_to_return:
            self._writer.send_content(number, os.dup(fd))
        try:
            rows = self._send_descriptors(channel, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)
        channel.sent += len(data)
        channel.in_transit += len(data)
        if rows:
            described = json.dumps(rows).encode()
            head = stream_frames.LENGTH.pack(len(described)) + described
            self._writer.send(stream_frames.GIVE, channel.number, head + data)
        else:
            self._writer.send(stream_frames.DATA, channel.number, data)
        return True

    def _end(self, channel: StreamChannel) -> None:
        """Handle the end of the data that this side's process writes."""
        channel.all_read = True
        if channel.ordered and channel.kind == descriptor_passing.MESSAGES and channel.group:
            channel.group.has_reader = False
        poller = select.poll()
        poller.register(channel.fd, 0)
        if channel.kind == descriptor_passing.READ or channel.all_written or poller.poll(0):
            self._channels.close(channel)
            return
        self._writer.send(stream_frames.END, channel.number)
        self._channels.rearm(channel)

    def _send_descriptors(
        self, channel: StreamChannel, descriptors: Sequence[int]
    ) -> list[list[object]]:
        """Describe descriptors to the other side, and serve this side's ends."""
        described = self._describe(channel, descriptors)
        descriptions = [description for description, _ in described]
        group = ChannelGroup.of(channel, descriptions)
        with_pipes = descriptor_passing.has_pipes(descriptions)
        for description, fd in described:
            if description.kind == descriptor_passing.FILE:
                self._send_file(description, fd)
            else:
                self._channels.open(
                    description.number, description.kind, fd, group, with_pipes=with_pipes
                )
        return [description.row() for description in descriptions]

    def _describe(
        self, channel: StreamChannel, descriptors: Sequence[int]
    ) -> list[tuple[DescriptorDescription, int]]:
        """Return the descriptors that may be sent, duplicated, with their descriptions."""
        described = []
        for fd in descriptors:
            try:
                description = descriptor_passing.describe(fd, next(self._numbers))
            except (OSError, ValueError):
                continue
            if self._side.may_send(channel, description):
                described.append((description, os.dup(fd)))
        return described

    def _send_file(self, description: DescriptorDescription, fd: int) -> None:
        self._writer.send_number(stream_frames.MAKE, description.number, description.size)
        if not description.comes_back:
            self._writer.send_content(description.number, fd)
            return
        self._writer.send_content(description.number, os.dup(fd))
        self._side.lend(description.number, fd)
