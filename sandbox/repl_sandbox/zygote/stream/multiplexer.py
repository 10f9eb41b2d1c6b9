"""`Multiplexer`: many sockets, pipes and files over one stream; the common part of both ends.

Each descriptor that one side's processes send is described to the other side, which makes an
equivalent one and passes that on; data written to one end comes out of the other. Each channel has
a window of bytes in transit, so none delays another. The content of a file precedes the message
that it belongs to.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import struct
from collections import deque
from collections.abc import Iterator, Sequence

from . import descriptor_passing, stream_frames
from .stream_channels import WINDOW, ChannelGroup, Delivery, StreamChannel
from .stream_frames import BrokenStreamError, Parser, frame

# Bytes that are collected for one write.
_TOGETHER = 1 << 16
_READ = 1 << 17


class Multiplexer:
    """`source`, `sink`: descriptors of the stream. `first`: the first channel number of this side.

    `most_files`: files from the other side that belong to no message yet.
    """

    most_files = 8

    def __init__(self, source: int, sink: int, first: int) -> None:
        self._source, self._sink = source, sink
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        self._numbers = itertools.count(first, 2)
        self._parser = Parser()
        self._channels: dict[int, StreamChannel] = {}
        self._by_fd: dict[int, StreamChannel] = {}
        self._made: dict[int, int] = {}  # files that are being filled
        self._out: deque[bytes | Iterator[bytes]] = deque()
        self._buffer = bytearray()
        self._poll = select.epoll()
        self._poll.register(source, select.EPOLLIN)
        self._interest: dict[int, int] = {}
        self._sink_polled = False
        self.over = False
        self.ends = False  # when everything is sent

    def add(self, channel: StreamChannel) -> None:
        """Serve one more channel."""
        os.set_blocking(channel.fd, False)
        self._channels[channel.number] = channel
        self._by_fd[channel.fd] = channel
        self._rearm(channel)

    def serve(self) -> None:
        """Carry data until the stream ends.

        Raises:
            BrokenStreamError: the other end broke the protocol.
        """
        while not (self.over or (self.ends and not self._buffer and not self._out)):
            for fd, events in self._poll.poll():
                if fd == self._source:
                    self._hear()
                elif fd in self._by_fd:
                    self._attend(self._by_fd[fd], events)
            self._flush()

    def unwrap(self, data: bytes) -> Iterator[bytes]:
        """Return the pieces of frames in data read from the stream."""
        yield data

    def accepts(
        self, channel: StreamChannel, descriptor: descriptor_passing.DescriptorDescription
    ) -> bool:
        """Whether a process of this side may send such a descriptor on `channel`."""
        raise NotImplementedError

    def is_gone(self, channel: StreamChannel) -> None:
        """Handle the end of `channel`."""

    def say(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame after those before it."""
        self._out.append(frame(kind, number, payload))

    # ── from this side's processes ────────────────────────────────────────────────────────────

    def _attend(self, channel: StreamChannel, events: int) -> None:
        if channel.pending:
            self._deliver(channel)
        if channel.closed:
            return
        if channel.kind == descriptor_passing.WRITTEN:
            if events & (select.EPOLLERR | select.EPOLLHUP):
                self._close(channel)
        elif channel.reads and self._is_in_turn(channel):
            self._take(channel)
        self._rearm(channel)

    def _is_in_turn(self, channel: StreamChannel) -> bool:
        """Whether everything has been sent that was in the pipes before data came on a socket.

        A session's message that a cell has ended must follow the cell's output.
        """
        group = channel.group
        if not channel.ordered or group is None:
            return True
        if not channel.waits_for:
            pipes = (
                (pipe, pipe.there()) for pipe in group.pipes if pipe.kind == descriptor_passing.READ
            )
            channel.waits_for = [(pipe, pipe.sent + there) for pipe, there in pipes if there]
        for pipe, most in channel.waits_for:
            while pipe.sent < most and pipe.reads and not pipe.closed:
                if not self._take(pipe):
                    break
            self._rearm(pipe)
        channel.waits_for = [
            (pipe, most)
            for pipe, most in channel.waits_for
            if pipe.sent < most and not pipe.closed and not pipe.all_read
        ]
        return not channel.waits_for

    def _take(self, channel: StreamChannel) -> bool:
        """Read once and send; return whether there was data."""
        if channel.closed:
            return False
        try:
            data, descriptors, pid = channel.take()
        except BlockingIOError:
            return False
        if not data:
            self._ends(channel)
            return False
        if pid and not channel.peer:
            channel.peer = pid
            self.say(stream_frames.PEER, channel.number, stream_frames.NUMBER.pack(pid))
        for number, fd in channel.lent:
            self._out.append(_filling(number, fd))
        try:
            records = self._offer(channel, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)
        channel.sent += len(data)
        channel.under_way += len(data)
        if records:
            described = json.dumps(records).encode()
            head = stream_frames.LENGTH.pack(len(described)) + described
            self.say(stream_frames.GIVE, channel.number, head + data)
        else:
            self.say(stream_frames.DATA, channel.number, data)
        return True

    def _ends(self, channel: StreamChannel) -> None:
        """Handle the end of the data that this side's process writes."""
        channel.all_read = True
        if (
            channel.ordered
            and channel.kind == descriptor_passing.MESSAGES
            and channel.group is not None
        ):
            channel.group.heard = False
        poller = select.poll()
        poller.register(channel.fd, 0)
        if channel.kind == descriptor_passing.READ or channel.all_written or poller.poll(0):
            self._close(channel)
            return
        self.say(stream_frames.END, channel.number)
        self._rearm(channel)

    def _offer(self, channel: StreamChannel, descriptors: Sequence[int]) -> list[list[object]]:
        """Describe descriptors to the other side, and serve this side's ends."""
        offered: list[tuple[descriptor_passing.DescriptorDescription, int]] = []
        for fd in descriptors:
            try:
                description = descriptor_passing.describe(fd, next(self._numbers))
            except (OSError, ValueError):
                continue
            if self.accepts(channel, description):
                offered.append((description, os.dup(fd)))
        group = _group(channel, [each for each, _ in offered])
        for description, fd in offered:
            if description.kind == descriptor_passing.FILE:
                self._send_file(channel, description, fd)
            else:
                self._serve(description.number, description.kind, fd, group, offered)
        return [each.row() for each, _ in offered]

    def _send_file(
        self, channel: StreamChannel, description: descriptor_passing.DescriptorDescription, fd: int
    ) -> None:
        self.say(
            stream_frames.MAKE, description.number, stream_frames.NUMBER.pack(description.size)
        )
        self._out.append(_filling(description.number, fd, last=not description.comes_back))
        if description.comes_back:
            self.lend(description.number, fd)

    def lend(self, number: int, fd: int) -> None:
        """Let the other side fill file `fd`, which this object owns from here on."""
        os.close(fd)

    def _serve(
        self,
        number: int,
        kind: str,
        fd: int,
        group: ChannelGroup | None,
        together: Sequence[tuple[descriptor_passing.DescriptorDescription, int]],
        *,
        asks_who: bool = False,
    ) -> None:
        """Serve this side's end of a new channel."""
        with_pipes = any(each.kind in _PIPES for each, _ in together)
        ordered = group is not None and (
            kind == descriptor_passing.BYTES or (with_pipes and kind not in _PIPES)
        )
        channel = StreamChannel(number, kind, fd, group, ordered, asks_who)
        if group is not None:
            if kind in _PIPES:
                group.pipes.append(channel)
            elif ordered:
                group.ordered.append(channel)
        self.add(channel)

    # ── from the other side ───────────────────────────────────────────────────────────────────

    def _hear(self) -> None:
        try:
            data = os.read(self._source, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        for piece in self.unwrap(data):
            for kind, number, payload in self._parser.feed(piece):
                self._obey(kind, number, payload)

    def _obey(self, kind: int, number: int, payload: bytes) -> None:
        if kind == stream_frames.MAKE:
            self._make(number, _number(payload))
        elif kind == stream_frames.FILL:
            self._fill(number, payload)
        elif kind == stream_frames.GIVE:
            self._given(self._channels.get(number), payload)
        elif kind == stream_frames.DATA and self.hear(number, payload):
            pass
        elif (channel := self._channels.get(number)) is None:
            self.is_unknown(kind, number)
        elif kind == stream_frames.DATA:
            self.deliver(channel, Delivery(payload))
        elif kind == stream_frames.PEER:
            self.peer_is(channel, _number(payload))
        elif kind == stream_frames.CREDIT:
            self._credit(channel, _number(payload))
        else:
            self.deliver(channel, Delivery(b"", ends=True, closes=kind == stream_frames.CLOSE))

    def hear(self, number: int, payload: bytes) -> bool:
        """Handle data for this object itself; return whether it was."""
        return False

    def is_unknown(self, kind: int, number: int) -> None:
        """Ignore a frame for a channel that does not exist, usually because it was just closed."""

    def peer_is(self, channel: StreamChannel, pid: int) -> None:
        """Handle the sender's pid on `channel`, as the other side's kernel reports it."""

    def _make(self, number: int, size: int) -> None:
        if len(self._made) >= self.most_files or number in self._made:
            raise BrokenStreamError("too many files")
        self._made[number] = descriptor_passing.new_file(self.check_size(size))

    def check_size(self, size: int) -> int:
        """Return `size` if a file may have so many bytes."""
        return size

    def _fill(self, number: int, payload: bytes) -> None:
        fd = self._made.get(number)
        if fd is None:
            self.is_filled(number, payload)
            return
        put(fd, payload)

    def is_filled(self, number: int, payload: bytes) -> None:
        """Handle a part of a lent file that the other side has filled."""

    def _given(self, channel: StreamChannel | None, payload: bytes) -> None:
        try:
            (length,) = stream_frames.LENGTH.unpack_from(payload)
            start = stream_frames.LENGTH.size
            rows = json.loads(payload[start : start + length])
            descriptions = [descriptor_passing.described(row) for row in rows]
        except (ValueError, TypeError, RecursionError, struct.error) as error:
            raise BrokenStreamError(f"descriptors: {error}") from error
        delivery = Delivery(payload[start + length :])
        group = _group(channel, descriptions)
        together = [(each, -1) for each in descriptions]
        for each in descriptions:
            if not self.takes(channel, each):
                raise BrokenStreamError(f"a descriptor of kind {each.kind}")
            if each.kind == descriptor_passing.FILE:
                delivery.descriptors.append(self._finish(channel, each))
                continue
            kept, handed_on = descriptor_passing.make_ends(each)
            delivery.descriptors.append(handed_on)
            kind = descriptor_passing.other_end(each.kind)
            self._serve(
                each.number, kind, kept, group, together, asks_who=kind == descriptor_passing.BYTES
            )
        if channel is None:
            delivery.drop()  # and their other ends see it
        else:
            self.deliver(channel, delivery)

    def takes(
        self, channel: StreamChannel | None, description: descriptor_passing.DescriptorDescription
    ) -> bool:
        """Whether the other side may send such a descriptor on `channel`; otherwise it is
        closed.
        """
        raise NotImplementedError

    def _finish(
        self, channel: StreamChannel | None, description: descriptor_passing.DescriptorDescription
    ) -> int:
        """Return a complete file, sealed."""
        fd = self._made.pop(description.number, -1)
        if fd < 0:
            raise BrokenStreamError("a file that was not sent")
        descriptor_passing.seal(fd, description.seals)
        if description.comes_back and channel is not None:
            channel.lent.append((description.number, os.dup(fd)))
        return fd

    def deliver(self, channel: StreamChannel, delivery: Delivery) -> None:
        """Deliver data, after everything that its session has written before."""
        channel.received += len(delivery.data)
        if channel.received - channel.delivered > WINDOW + 2 * stream_frames.MOST:
            raise BrokenStreamError("more than there is room for")
        if channel.ordered and channel.group is not None:
            delivery.after = [
                (pipe, pipe.received)
                for pipe in channel.group.pipes
                if pipe.kind == descriptor_passing.WRITTEN and pipe.delivered < pipe.received
            ]
        channel.pending.append(delivery)
        self._deliver(channel)

    def _deliver(self, channel: StreamChannel) -> None:
        """Write as much as possible now."""
        while channel.pending:
            delivery = channel.pending[0]
            heard = channel.group is None or channel.group.heard
            if heard and not delivery.may_go():
                break
            if delivery.ends:
                self._end(channel, closes=delivery.closes)
                return
            try:
                sent = channel.give(delivery)
            except BlockingIOError:
                break
            except OSError:
                self._close(channel)
                return
            delivery.drop()
            delivery.data = delivery.data[sent:]
            channel.delivered += sent
            channel.owed += sent
            if not delivery.data:
                channel.pending.popleft()
        self._settle(channel)
        self._rearm(channel)
        if channel.kind == descriptor_passing.WRITTEN:
            self._go_on_after(channel)

    def _settle(self, channel: StreamChannel) -> None:
        """Acknowledge delivered bytes to the other side."""
        if channel.owed > WINDOW // 4 or (channel.owed and not channel.pending):
            owed, channel.owed = channel.owed, 0
            self.say(stream_frames.CREDIT, channel.number, stream_frames.NUMBER.pack(owed))

    def _end(self, channel: StreamChannel, *, closes: bool) -> None:
        channel.pending.popleft()
        if closes or channel.all_read:
            self._close(channel, tell=not closes)
        else:
            channel.end()
            self._rearm(channel)

    def _go_on_after(self, pipe: StreamChannel) -> None:
        """Continue deliveries that wait for this pipe."""
        if pipe.group is not None:
            for channel in list(pipe.group.ordered):
                if channel.pending and not channel.closed:
                    self._deliver(channel)

    def _credit(self, channel: StreamChannel, size: int) -> None:
        channel.under_way = max(0, channel.under_way - size)
        if channel.kind == descriptor_passing.READ and channel.group is not None:
            for each in channel.group.ordered:
                if each.waits_for and not each.closed and self._is_in_turn(each):
                    self._rearm(each)
        self._rearm(channel)

    def _close(self, channel: StreamChannel, *, tell: bool = True) -> None:
        if channel.closed:
            return
        if tell:
            self.say(stream_frames.CLOSE, channel.number)
        self._unregister(channel)
        self._channels.pop(channel.number, None)
        self._by_fd.pop(channel.fd, None)
        group = channel.group
        if group is not None:
            for among in (group.pipes, group.ordered):
                if channel in among:
                    among.remove(channel)
        channel.close()
        if channel.kind in _PIPES:
            self._go_on_after(channel)
        self.is_gone(channel)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def _rearm(self, channel: StreamChannel) -> None:
        if channel.closed:
            return
        wanted = 0
        if channel.reads and not channel.waits_for:
            wanted |= select.EPOLLIN
        if channel.pending and channel.pending[0].may_go():
            wanted |= select.EPOLLOUT
        if not wanted and channel.kind != descriptor_passing.WRITTEN:
            self._unregister(channel)  # else the end of the other process would wake this for ever
            return
        known = self._interest.get(channel.fd)
        if known is None:
            self._poll.register(channel.fd, wanted)
        elif known != wanted:
            self._poll.modify(channel.fd, wanted)
        self._interest[channel.fd] = wanted

    def _unregister(self, channel: StreamChannel) -> None:
        if self._interest.pop(channel.fd, None) is not None:
            self._poll.unregister(channel.fd)

    def _flush(self) -> None:
        """Write to the stream as much as it accepts."""
        try:
            while self._buffer or self._out:
                self._fill_buffer()
                del self._buffer[: os.write(self._sink, self._buffer)]
        except BlockingIOError:
            pass
        except OSError:
            self.over = True
            return
        self._wait_for_sink(bool(self._buffer or self._out))

    def _fill_buffer(self) -> None:
        while self._out and len(self._buffer) < _TOGETHER:
            head = self._out[0]
            if isinstance(head, bytes):
                self._buffer += head
                self._out.popleft()
                continue
            piece = next(head, None)
            if piece is None:
                self._out.popleft()
            else:
                self._buffer += piece

    def _wait_for_sink(self, wanted: bool) -> None:
        if wanted == self._sink_polled:
            return
        self._sink_polled = wanted
        if self._sink == self._source:
            events = select.EPOLLIN | (select.EPOLLOUT if wanted else 0)
            self._poll.modify(self._source, events)
        elif wanted:
            self._poll.register(self._sink, select.EPOLLOUT)
        else:
            self._poll.unregister(self._sink)


_PIPES = (descriptor_passing.READ, descriptor_passing.WRITTEN)


def _group(
    channel: StreamChannel | None, given_: Sequence[descriptor_passing.DescriptorDescription]
) -> ChannelGroup | None:
    """The group of descriptors sent on `channel`: a new session's, or the channel's own."""
    own = None if channel is None else channel.group
    pipes = any(each.kind in _PIPES for each in given_)
    sockets = any(
        each.kind in (descriptor_passing.MESSAGES, descriptor_passing.BYTES) for each in given_
    )
    return ChannelGroup() if pipes and (sockets or own is None) else own


def _filling(number: int, fd: int, *, last: bool = False) -> Iterator[bytes]:
    """The frames of a file's content."""
    copy = fd if last else os.dup(fd)
    return _filling_from(number, copy)


def _filling_from(number: int, fd: int) -> Iterator[bytes]:
    try:
        for offset, data in descriptor_passing.content(fd):
            yield frame(stream_frames.FILL, number, stream_frames.NUMBER.pack(offset) + data)
    finally:
        os.close(fd)


def put(fd: int, payload: bytes) -> None:
    """Write the piece of a file in a frame; OSError if the piece is out of place."""
    offset, data = (
        _number(payload[: stream_frames.NUMBER.size]),
        payload[stream_frames.NUMBER.size :],
    )
    while data:
        written = os.pwrite(fd, data, offset)
        offset, data = offset + written, data[written:]


def _number(payload: bytes) -> int:
    if len(payload) != stream_frames.NUMBER.size:
        raise BrokenStreamError("a number of another length")
    number: int = stream_frames.NUMBER.unpack(payload)[0]
    return number
