"""The channels of a stream: each is a local descriptor whose other end is on the other side."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EPIPE

from . import descriptors, frames
from .descriptors import (
    BYTES,
    MESSAGES,
    PIPES,
    READ,
    SOCKETS,
    WRITTEN,
    DescriptorDescription,
    has_pipes,
)
from .frames import CHUNK, frame

# Bytes of a channel in transit. A slow reader delays its own channel alone.
WINDOW = 1 << 18
_RIGHTS = socket.CMSG_SPACE(8 * 4)
_CREDENTIALS = socket.CMSG_SPACE(12)


@dataclass(slots=True)
class Delivery:
    """Data for a descriptor with its descriptors; `after`: pipes that must be written first."""

    data: bytes
    descriptors: list[int] = field(default_factory=list)
    after: list[tuple[StreamChannel, int]] = field(default_factory=list)
    ends: bool = False  # nothing comes after it
    closes: bool = False  # likewise, and nothing more is read

    def is_due(self) -> bool:
        """Return whether the pipes have received what was written before this was sent."""
        return all(pipe.closed or pipe.delivered >= offset for pipe, offset in self.after)

    def drop(self) -> None:
        """Close the descriptors."""
        fds, self.descriptors = self.descriptors, []
        for fd in fds:
            os.close(fd)


@dataclass(slots=True)
class ChannelGroup:
    """The channels of one session: output goes through its pipes before a message follows."""

    pipes: list[StreamChannel] = field(default_factory=list)
    ordered: list[StreamChannel] = field(default_factory=list)
    has_reader: bool = True  # the host reads the pipes

    @classmethod
    def of(
        cls, channel: StreamChannel | None, descriptions: Sequence[DescriptorDescription]
    ) -> ChannelGroup | None:
        """The group of descriptors sent on `channel`: a new session's, or the channel's own."""
        own = None if channel is None else channel.group
        sockets = any(description.kind in SOCKETS for description in descriptions)
        new = has_pipes(descriptions) and (sockets or own is None)
        return cls() if new else own

    def unsent(self) -> list[tuple[StreamChannel, int]]:
        """The pipes with unread data, and how far each must be sent to contain that data."""
        waiting = ((pipe, pipe.unread_size()) for pipe in self.pipes if pipe.kind == READ)
        return [(pipe, pipe.sent + unread_size) for pipe, unread_size in waiting if unread_size]

    def undelivered(self) -> list[tuple[StreamChannel, int]]:
        """The pipes with data that is not written yet, and how far each must be written."""
        return [
            (pipe, pipe.received)
            for pipe in self.pipes
            if pipe.kind == WRITTEN and pipe.delivered < pipe.received
        ]

    def remove(self, channel: StreamChannel) -> None:
        """Forget a channel that is closed."""
        for channels in (self.pipes, self.ordered):
            if channel in channels:
                channels.remove(channel)


@dataclass(eq=False)
class StreamChannel:
    """A channel, which owns `fd`. `kind`: as of `descriptor_passing`, seen from this side."""

    number: int
    kind: str
    fd: int
    group: ChannelGroup | None = None
    ordered: bool = False
    needs_sender: bool = False  # whether the kernel reports the sender
    sent: int = 0
    in_transit: int = 0
    received: int = 0
    delivered: int = 0
    unacknowledged: int = 0  # delivered, and not acknowledged yet
    peer: int = 0
    closed: bool = False
    all_read: bool = False
    all_written: bool = False
    pending: deque[Delivery] = field(default_factory=deque)
    # For a socket whose session has written to its pipes before: how far those must be sent.
    waits_for: list[tuple[StreamChannel, int]] = field(default_factory=list)
    files_to_return: list[tuple[int, int]] = field(
        default_factory=list
    )  # files to return: number, fd

    @property
    def reads(self) -> bool:
        """True if there may be data that the window permits to read."""
        return self.kind in _READABLE and not self.all_read and self.in_transit < WINDOW

    def unread_size(self) -> int:
        """The number of bytes in a pipe."""
        if self.closed or self.all_read:
            return 0
        return int.from_bytes(fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    def receive(self) -> tuple[bytes, list[int], int]:
        """Return data, its descriptors, and the sender's pid or 0.

        Raises:
            BlockingIOError: there is nothing now.
        """
        size = CHUNK
        if self.kind == READ:
            try:
                return os.read(self.fd, size), [], 0
            except BlockingIOError:
                raise
            except OSError:
                return b"", [], 0
        with _borrowed(self) as end:
            return _receive(end.socket, self.needs_sender)

    def send(self, delivery: Delivery) -> int:
        """Write as much as possible; return the number of bytes.

        Raises:
            BlockingIOError: nothing can be written now.
            OSError: the reader is gone.
        """
        if self.kind not in (MESSAGES, BYTES):
            return os.write(self.fd, delivery.data)
        with _borrowed(self) as end:
            if delivery.descriptors:
                return socket.send_fds(end.socket, [delivery.data], delivery.descriptors)
            sent = end.socket.send(delivery.data)
        if self.kind == MESSAGES and sent != len(delivery.data):
            raise OSError(EPIPE, os.strerror(EPIPE))
        return sent

    def end(self) -> None:
        """Report the end of the data to the reader."""
        self.all_written = True
        if self.kind in (MESSAGES, BYTES):
            with _borrowed(self) as end:
                try:
                    end.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # the reader is gone

    def release_lent_file(self, number: int) -> None:
        """Release the file with this number: it need not be returned."""
        for each in [each for each in self.files_to_return if each[0] == number]:
            self.files_to_return.remove(each)
            os.close(each[1])

    def close(self) -> None:
        """Close everything."""
        self.closed = True
        os.close(self.fd)
        for delivery in self.pending:
            delivery.drop()
        self.pending.clear()
        files, self.files_to_return = self.files_to_return, []
        for _, fd in files:
            os.close(fd)


_READABLE = (MESSAGES, BYTES, READ)


class _borrowed:  # noqa: N801
    """A socket object for the descriptor of a channel, which the channel still owns."""

    def __init__(self, channel: StreamChannel) -> None:
        kind = SOCKETS[channel.kind]
        self.socket = socket.socket(socket.AF_UNIX, kind, 0, fileno=channel.fd)

    def __enter__(self) -> _borrowed:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.detach()


def _receive(end: socket.socket, needs_sender: bool) -> tuple[bytes, list[int], int]:
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    space = _CREDENTIALS if needs_sender else _RIGHTS
    try:
        data, ancillary, _, _ = end.recvmsg(CHUNK, space, flags)
    except BlockingIOError:
        raise
    except OSError:
        return b"", [], 0  # as at end of file
    fds: list[int] = []
    pid = 0
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = int.from_bytes(payload[:4], sys.byteorder)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            complete = len(payload) - len(payload) % 4
            fds += memoryview(payload[:complete]).cast("i")
    return data, fds, pid


# `FrameWriter`: the frames that wait to be written to the stream.

# Bytes that are collected for one write.
_WRITE_SIZE = 1 << 16


class FrameWriter:
    """Frames for descriptor `sink`, which does not block."""

    def __init__(self, sink: int) -> None:
        self._sink = sink
        self._frames: deque[bytes | Iterator[bytes]] = deque()
        self._buffer = bytearray()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame after those before it."""
        self._frames.append(frame(kind, number, payload))

    def send_number(self, kind: int, number: int, value: int) -> None:
        """Send a frame whose payload is a number."""
        self.send(kind, number, frames.NUMBER.pack(value))

    def send_content(self, number: int, fd: int) -> None:
        """Send the content of file `fd`, which is closed afterwards, as the file `number`."""
        self._frames.append(_content_frames(number, fd))

    @property
    def pending(self) -> bool:
        """True if frames wait to be written."""
        return bool(self._buffer or self._frames)

    def flush(self) -> None:
        """Write as much as the stream accepts; raise OSError if its reader is gone."""
        try:
            while self.pending:
                self._fill_buffer()
                del self._buffer[: os.write(self._sink, self._buffer)]
        except BlockingIOError:
            pass

    def _fill_buffer(self) -> None:
        while self._frames and len(self._buffer) < _WRITE_SIZE:
            head = self._frames[0]
            piece = head if isinstance(head, bytes) else next(head, None)
            if piece is not None:
                self._buffer += piece
            if piece is None or piece is head:
                self._frames.popleft()


def _content_frames(number: int, fd: int) -> Iterator[bytes]:
    try:
        for offset, data in descriptors.content(fd):
            yield frame(frames.FILL, number, frames.NUMBER.pack(offset) + data)
    finally:
        os.close(fd)


# `ChannelTable`: the open channels of one side, and what its loop waits for on each.


class ChannelTable:
    """The channels over `source` and `sink`; `closed` is called after one of them is closed."""

    def __init__(
        self,
        source: int,
        sink: int,
        writer: FrameWriter,
        closed: Callable[[StreamChannel], None],
    ) -> None:
        self._source, self._sink = source, sink
        self._writer, self._closed = writer, closed
        self._by_number: dict[int, StreamChannel] = {}
        self._by_fd: dict[int, StreamChannel] = {}
        self._poll = select.epoll()
        self._poll.register(source, select.EPOLLIN)
        self._interest: dict[int, int] = {}
        self._sink_polled = False

    def get(self, number: int) -> StreamChannel | None:
        """The open channel with this number."""
        return self._by_number.get(number)

    def add(self, channel: StreamChannel) -> None:
        """Serve one more channel."""
        os.set_blocking(channel.fd, False)
        self._by_number[channel.number] = channel
        self._by_fd[channel.fd] = channel
        self.rearm(channel)

    def open(
        self,
        number: int,
        kind: str,
        fd: int,
        group: ChannelGroup | None,
        *,
        with_pipes: bool,
        needs_sender: bool = False,
    ) -> None:
        """Serve this side's end of a new channel, whose descriptor came `with_pipes` or without."""
        ordered = group is not None and (kind == BYTES or (with_pipes and kind not in PIPES))
        channel = StreamChannel(number, kind, fd, group, ordered, needs_sender)
        if group is not None:
            if kind in PIPES:
                group.pipes.append(channel)
            elif ordered:
                group.ordered.append(channel)
        self.add(channel)

    def release_lent(self, number: int) -> None:
        """Release the file `number`, which need not be returned."""
        for channel in self._by_number.values():
            channel.release_lent_file(number)

    def close(self, channel: StreamChannel, *, notify: bool = True) -> None:
        """Close a channel; `notify` the other side."""
        if channel.closed:
            return
        if notify:
            self._writer.send(frames.CLOSE, channel.number)
        self._unregister(channel)
        self._by_number.pop(channel.number, None)
        self._by_fd.pop(channel.fd, None)
        if channel.group is not None:
            channel.group.remove(channel)
        channel.close()
        self._closed(channel)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def wait(self) -> Iterable[tuple[StreamChannel | None, int]]:
        """Wait, and yield the ready channels with their events; None stands for the stream."""
        for fd, events in self._poll.poll():
            if fd == self._source:
                yield None, events
            elif (channel := self._by_fd.get(fd)) is not None:
                yield channel, events

    def rearm(self, channel: StreamChannel) -> None:
        """Wait for the events that the channel's state permits."""
        if channel.closed:
            return
        events = 0
        if channel.reads and not channel.waits_for:
            events |= select.EPOLLIN
        if channel.pending and channel.pending[0].is_due():
            events |= select.EPOLLOUT
        if not events and channel.kind != WRITTEN:
            # Otherwise the end of the other process would wake this loop again and again.
            self._unregister(channel)
            return
        known = self._interest.get(channel.fd)
        if known is None:
            self._poll.register(channel.fd, events)
        elif known != events:
            self._poll.modify(channel.fd, events)
        self._interest[channel.fd] = events

    def watch_sink(self, writable: bool) -> None:
        """Wait until the stream accepts data, or no longer."""
        if writable == self._sink_polled:
            return
        self._sink_polled = writable
        if self._sink == self._source:
            events = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
            self._poll.modify(self._source, events)
        elif writable:
            self._poll.register(self._sink, select.EPOLLOUT)
        else:
            self._poll.unregister(self._sink)

    def _unregister(self, channel: StreamChannel) -> None:
        if self._interest.pop(channel.fd, None) is not None:
            self._poll.unregister(channel.fd)
