"""`ChannelTable`: the open channels of one side, and what its loop waits for on each."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable

from . import stream_frames
from .descriptor_passing import BYTES, PIPES, WRITTEN
from .frame_writer import FrameWriter
from .stream_channels import ChannelGroup, StreamChannel


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
            self._writer.send(stream_frames.CLOSE, channel.number)
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
