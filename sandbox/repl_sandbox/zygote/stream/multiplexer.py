"""`Multiplexer`: relays between descriptors of this side and a stream."""

from __future__ import annotations

import itertools
import json
import os
import select
import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from . import descriptors, frames
from .channels import WINDOW, ChannelGroup, ChannelTable, Delivery, FrameWriter, StreamChannel
from .descriptors import DescriptorDescription, ReceivedFiles
from .frames import BrokenStreamError, Parser, read_number


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


# `ChannelReceiver`: delivers the frames of the other side to this side's processes.


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
        with_pipes = descriptors.has_pipes(descriptions)
        for description in descriptions:
            if not self._side.may_receive(channel, description):
                raise BrokenStreamError(f"a descriptor of kind {description.kind}")
            if description.kind == descriptors.FILE:
                delivery.descriptors.append(self._finish_file(channel, description))
                continue
            own, passed = descriptors.make_ends(description)
            delivery.descriptors.append(passed)
            kind = descriptors.other_end(description.kind)
            needs_sender = kind == descriptors.BYTES
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
        if channel.received - channel.delivered > WINDOW + 2 * frames.MAX_PAYLOAD:
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
        if channel.kind == descriptors.WRITTEN:
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
            self._writer.send_number(frames.CREDIT, channel.number, unacknowledged)

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
        (length,) = frames.LENGTH.unpack_from(payload)
        start = frames.LENGTH.size
        rows = json.loads(payload[start : start + length])
        return [descriptors.described(row) for row in rows], payload[start + length :]
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise BrokenStreamError(f"the description of descriptors is invalid: {error}") from error


# `ChannelSender`: sends what this side's processes write, with their descriptors, as frames.


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
        if channel.kind == descriptors.READ and channel.group is not None:
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
            self._writer.send_number(frames.PEER, channel.number, pid)
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
            head = frames.LENGTH.pack(len(described)) + described
            self._writer.send(frames.GIVE, channel.number, head + data)
        else:
            self._writer.send(frames.DATA, channel.number, data)
        return True

    def _end(self, channel: StreamChannel) -> None:
        """Handle the end of the data that this side's process writes."""
        channel.all_read = True
        if channel.ordered and channel.kind == descriptors.MESSAGES and channel.group:
            channel.group.has_reader = False
        poller = select.poll()
        poller.register(channel.fd, 0)
        if channel.kind == descriptors.READ or channel.all_written or poller.poll(0):
            self._channels.close(channel)
            return
        self._writer.send(frames.END, channel.number)
        self._channels.rearm(channel)

    def _send_descriptors(self, channel: StreamChannel, fds: Sequence[int]) -> list[list[object]]:
        """Describe descriptors to the other side, and serve this side's ends."""
        described = self._describe(channel, fds)
        descriptions = [description for description, _ in described]
        group = ChannelGroup.of(channel, descriptions)
        with_pipes = descriptors.has_pipes(descriptions)
        for description, fd in described:
            if description.kind == descriptors.FILE:
                self._send_file(description, fd)
            else:
                self._channels.open(
                    description.number, description.kind, fd, group, with_pipes=with_pipes
                )
        return [description.row() for description in descriptions]

    def _describe(
        self, channel: StreamChannel, fds: Sequence[int]
    ) -> list[tuple[DescriptorDescription, int]]:
        """Return the descriptors that may be sent, duplicated, with their descriptions."""
        described = []
        for fd in fds:
            try:
                description = descriptors.describe(fd, next(self._numbers))
            except (OSError, ValueError):
                continue
            if self._side.may_send(channel, description):
                described.append((description, os.dup(fd)))
        return described

    def _send_file(self, description: DescriptorDescription, fd: int) -> None:
        self._writer.send_number(frames.MAKE, description.number, description.size)
        if not description.comes_back:
            self._writer.send_content(description.number, fd)
            return
        self._writer.send_content(description.number, os.dup(fd))
        self._side.lend(description.number, fd)


# `Multiplexer`: many sockets, pipes and files over one stream; the common part of both ends.
#
# Each descriptor that one side's processes send is described to the other side, which makes an
# equivalent one and passes that on; data written to one end comes out of the other. Each channel
# has a window of bytes in transit, so none delays another. The content of a file precedes the
# message that it belongs to.

_READ_SIZE = 1 << 17


class Multiplexer:
    """The end of `side` of the stream that is read from `source` and written to `sink`.

    `first`: the first channel number of this side. `files`: limits of the files that the other side
    sends.
    """

    def __init__(
        self, source: int, sink: int, first: int, side: StreamSide, files: ReceivedFiles
    ) -> None:
        self._source, self._side, self._files = source, side, files
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self._parser = Parser()
        self._writer = FrameWriter(sink)
        self._channels = ChannelTable(source, sink, self._writer, self._closed)
        self._sender = ChannelSender(self._channels, self._writer, side, first)
        self._receiver = ChannelReceiver(self._channels, self._writer, side, files)
        self._over = False
        self._ending = False  # once everything is sent

    def add(self, channel: StreamChannel) -> None:
        """Serve one more channel."""
        self._channels.add(channel)

    def serve(self) -> None:
        """Carry data until the stream ends.

        Raises:
            BrokenStreamError: the other end broke the protocol.
        """
        while not (self._over or (self._ending and not self._writer.pending)):
            for channel, events in self._channels.wait():
                if channel is None:
                    self._read_stream()
                else:
                    self._handle_events(channel, events)
            self._flush()

    def _handle_events(self, channel: StreamChannel, events: int) -> None:
        if channel.pending:
            self._receiver.write(channel)
        if channel.closed:
            return
        if channel.kind != descriptors.WRITTEN:
            self._sender.read(channel)
        elif events & (select.EPOLLERR | select.EPOLLHUP):
            self._channels.close(channel)
        self._channels.rearm(channel)

    def _closed(self, channel: StreamChannel) -> None:
        if channel.kind in descriptors.PIPES:
            self._receiver.continue_after(channel)
        self._ending = self._side.closed(channel) or self._ending

    def _flush(self) -> None:
        """Write to the stream as much as it accepts."""
        try:
            self._writer.flush()
        except OSError:
            self._over = True
            return
        self._channels.watch_sink(self._writer.pending)

    def _read_stream(self) -> None:
        try:
            data = os.read(self._source, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._over = True
            return
        for piece in self._side.unwrap(data):
            for kind, number, payload in self._parser.feed(piece):
                self._handle(kind, number, payload)

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle one frame."""
        if kind == frames.MAKE:
            self._files.make(number, read_number(payload))
        elif kind == frames.FILL:
            self._fill(number, payload)
        elif kind == frames.GIVE:
            self._receiver.receive_descriptors(self._channels.get(number), payload)
        elif kind == frames.DATA and self._answers(number, payload):
            pass
        elif (channel := self._channels.get(number)) is not None:
            self._handle_on(channel, kind, payload)
        elif kind == frames.CLOSE:
            # Of a lent file. A frame for another number is for a channel that was just closed.
            self._channels.release_lent(number)

    def _handle_on(self, channel: StreamChannel, kind: int, payload: bytes) -> None:
        """Handle one frame for an open channel."""
        if kind == frames.DATA:
            self._receiver.deliver(channel, Delivery(payload))
        elif kind == frames.PEER:
            self._side.peer_is(channel, read_number(payload))
        elif kind == frames.CREDIT:
            self._sender.credit(channel, read_number(payload))
        else:
            closes = kind == frames.CLOSE
            self._receiver.deliver(channel, Delivery(b"", ends=True, closes=closes))

    def _fill(self, number: int, payload: bytes) -> None:
        if not self._files.fill(number, payload) and not self._side.fill_lent(number, payload):
            self._writer.send(frames.CLOSE, number)

    def _answers(self, number: int, payload: bytes) -> bool:
        """Answer data that is for this side itself; return whether it is."""
        answer = self._side.answer(number, payload)
        if answer is None:
            return False
        self._writer.send_number(frames.CREDIT, number, len(payload))
        self._writer.send(frames.DATA, number, answer)
        return True
