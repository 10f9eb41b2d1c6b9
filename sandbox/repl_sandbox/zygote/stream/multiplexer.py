"""`Multiplexer`: many sockets, pipes and files over one stream; the common part of both ends.

Each descriptor that one side's processes send is described to the other side, which makes an
equivalent one and passes that on; data written to one end comes out of the other. Each channel has
a window of bytes in transit, so none delays another. The content of a file precedes the message
that it belongs to.
"""

from __future__ import annotations

import os
import select

from . import descriptor_passing, stream_frames
from .channel_receiver import ChannelReceiver
from .channel_sender import ChannelSender
from .channel_table import ChannelTable
from .frame_writer import FrameWriter
from .received_files import ReceivedFiles
from .stream_channels import Delivery, StreamChannel
from .stream_frames import Parser, read_number
from .stream_side import StreamSide

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
        if channel.kind != descriptor_passing.WRITTEN:
            self._sender.read(channel)
        elif events & (select.EPOLLERR | select.EPOLLHUP):
            self._channels.close(channel)
        self._channels.rearm(channel)

    def _closed(self, channel: StreamChannel) -> None:
        if channel.kind in descriptor_passing.PIPES:
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
        if kind == stream_frames.MAKE:
            self._files.make(number, read_number(payload))
        elif kind == stream_frames.FILL:
            self._fill(number, payload)
        elif kind == stream_frames.GIVE:
            self._receiver.receive_descriptors(self._channels.get(number), payload)
        elif kind == stream_frames.DATA and self._answers(number, payload):
            pass
        elif (channel := self._channels.get(number)) is not None:
            self._handle_on(channel, kind, payload)
        elif kind == stream_frames.CLOSE:
            # Of a lent file. A frame for another number is for a channel that was just closed.
            self._channels.release_lent(number)

    def _handle_on(self, channel: StreamChannel, kind: int, payload: bytes) -> None:
        """Handle one frame for an open channel."""
        if kind == stream_frames.DATA:
            self._receiver.deliver(channel, Delivery(payload))
        elif kind == stream_frames.PEER:
            self._side.peer_is(channel, read_number(payload))
        elif kind == stream_frames.CREDIT:
            self._sender.credit(channel, read_number(payload))
        else:
            closes = kind == stream_frames.CLOSE
            self._receiver.deliver(channel, Delivery(b"", ends=True, closes=closes))

    def _fill(self, number: int, payload: bytes) -> None:
        if not self._files.fill(number, payload) and not self._side.fill_lent(number, payload):
            self._writer.send(stream_frames.CLOSE, number)

    def _answers(self, number: int, payload: bytes) -> bool:
        """Answer data that is for this side itself; return whether it is."""
        answer = self._side.answer(number, payload)
        if answer is None:
            return False
        self._writer.send_number(stream_frames.CREDIT, number, len(payload))
        self._writer.send(stream_frames.DATA, number, answer)
        return True
