"""`HostCallHandler`: the calls of a cell to the host, and the replies.

Host functions, answers, pages of earlier output, and descriptors that the worker lacks.
"""

from __future__ import annotations

import os
import time

from ...errors import RemoteProtocolError
from ...protocol.messages import MEMFD, STREAMS, Answered, HostCall, HostReply
from ...zygote.client.session_endpoints import write_end
from ..cells.cell_answers import Accept
from ..cells.running_cell import RunningCell
from ..io import SessionIO
from ..output import OutputCapture
from .call_codec import refusal
from .open_calls import OpenCalls
from .output_paging import PAGING, page

_monotonic = time.monotonic

_CELL_ENDED = "the cell that made this call has ended"


class HostCallHandler:
    """The calls of one session. `count`: calls of host functions so far."""

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        open_calls: OpenCalls,
        output: OutputCapture,
        on_answer: Accept | None,
    ) -> None:
        self._io, self._cell, self._output = io, cell, output
        self.open_calls = open_calls
        self.on_answer = on_answer
        self.count = 0

    def take(self, call: HostCall) -> None:
        """Start the call, or refuse it.

        Raises:
            RemoteProtocolError: the engine's own worker never sends such a call.
        """
        if call.name == MEMFD:
            self._io.attach_memfd(call)
        elif call.name == STREAMS:
            self._send_streams(call)
        elif not self._cell.is_running(call.cell):
            self._refuse(call.call, "Cancelled", _CELL_ENDED)
        elif call.call in self.open_calls.running:
            raise RemoteProtocolError("a call number is used twice")
        elif call.name in PAGING:
            self._io.send(page(self._output.history, call, len(self._io.send_buffer)))
        else:
            self._begin(call)

    def _begin(self, call: HostCall) -> None:
        refused = self.open_calls.refused(call)
        if refused is not None:
            self._io.send(refused)
            return
        self._pause_clock()
        self.open_calls.begin(call, self._cell.number)
        self.count += 1

    def take_answer(self, answered: Answered) -> None:
        """Keep an answer of the cell, refuse it, or ask `on_answer`.

        Raises:
            RemoteProtocolError: the engine's own worker never sends such an answer.
        """
        if not self._cell.is_running(answered.cell):
            self._refuse(answered.call, "Cancelled", "the cell that answered has ended")
            return
        if answered.call in self.open_calls.running:
            raise RemoteProtocolError("a call number is used twice")
        try:
            verdict = self._cell.answers.offer(answered, self.on_answer)
        except ValueError as error:
            self._refuse(answered.call, "ValueError", str(error))
            return
        if verdict is None:
            self._io.send(HostReply(answered.call, True, b"null"))
            return
        self._pause_clock()
        call = HostCall(answered.call, self._cell.number, "on_answer", b"")
        self.open_calls.wait_for(verdict, call, len(answered.answer.text))
        self._io.set_reply_fds(self.open_calls.reply_fds)

    def reply(self) -> None:
        """Send the replies of functions that have ended."""
        cell = self._cell
        for reply in self.open_calls.replies(cell.number):
            self._resume_clock()
            cell.answers.decided(reply.call, reply.ok)
            self._io.send(reply)

    def cancel_open(self) -> None:
        """End the open calls of the cell, which is over."""
        if not self.open_calls.running:
            return
        self._cell.answers.leave_undecided()
        for call in self.open_calls.end():
            if not self._io.worker.dead:
                self._refuse(call, "Cancelled", _CELL_ENDED)
            self._resume_clock()

    def _send_streams(self, call: HostCall) -> None:
        """Send the worker its standard output and error again, which code has closed.

        A worker that does not read them cannot get more.
        """
        late = call.cell != self._cell.number or self._cell.result is not None
        if late or not self._io.send_buffer.is_read():
            self._refuse(call.call, "Cancelled", "there are no streams now")
            return
        links = self._io.links
        descriptors: list[int] = []
        try:
            for stream, fd in enumerate((links.stdout, links.stderr), 1):
                descriptors.append(write_end(fd, stream))
            self._io.send(HostReply(call.call, True, b"null"), descriptors)
        except OSError as error:
            self._refuse(call.call, "OSError", f"{error.strerror}")
        finally:
            for fd in descriptors:
                os.close(fd)

    def _refuse(self, call: int, kind: str, message: str) -> None:
        self._io.send(refusal(call, kind, message))

    def _pause_clock(self) -> None:
        self._cell.start_clocks().call_begins(_monotonic(), self._io.worker.cpu_seconds())

    def _resume_clock(self) -> None:
        if self._cell.clocks is not None:
            self._cell.clocks.call_ends(_monotonic(), self._io.worker.cpu_seconds())
