"""What comes in for the cell that runs: its result, its output, its calls and answers."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping

from ..errors import RemoteProtocolError
from ..types import Limits
from ..wire.messages import (
    MEMFD,
    STREAMS,
    Answered,
    Call,
    Configure,
    Reply,
    Result,
    WorkerMessage,
)
from ..zygote.ends import write_end
from ..zygote.links import Links
from .answers import Accept, AnswersOfCell
from .branching import Branching
from .calls import Calls
from .clocks import Clocks
from .exchange import Ready_
from .host_functions import refusal
from .output import Output
from .paging import PAGING, page

_monotonic = time.monotonic


class Incoming(Branching):
    """A session whose cells say something, and are answered."""

    def __init__(
        self,
        links: Links,
        limits: Limits,
        configure: Configure,
        *,
        plain: bool,
        rlimits: Mapping[str, int],
        states: int,
        calls: Calls,
        on_answer: Accept | None,
    ) -> None:
        super().__init__(
            links,
            limits,
            configure,
            plain=plain,
            wakes=calls.wakes,
            rlimits=rlimits,
            states=states,
        )
        self._calls = calls
        self._on_answer = on_answer
        self.output = Output(links.stdout, links.stderr, int(limits.output))
        # Set by a driver that looks at the worker's socket before it looks at the pipes.
        self.worker_first = False
        self.called = 0  # functions of the host so far
        self._answers = AnswersOfCell()
        self._begin_cell()

    def _begin_cell(self) -> None:
        self._quiet = False
        self._result: Result | None = None
        self._clocks: Clocks | None = None
        if self._answers.kept:
            self._answers = AnswersOfCell()

    def _receive(self, ready: Ready_) -> None:
        if len(ready) == 1 and ready[0][0] == self.worker_fd and not self.outbox:
            # What the cell wrote before its result was in the pipes before this was said. If that
            # was seen first, and nothing in the pipes after it, then nothing is there.
            self._quiet = self._take_all(self._read_worker()) and self.worker_first
            return
        for fd, _ in ready:
            if fd == self.worker_fd:
                if self.outbox and not self.outbox.flush():
                    self._eof = True
                self._lend()
                if self.outbox.interest & select.POLLIN:
                    self._take_all(self._read_worker())
            elif fd == self._control_fd:
                self._read_control()
            elif not self.output.read(fd):
                self._reply()

    def _take_all(self, data: bytes) -> bool:
        """Take in what the worker sent; whether that was the result and nothing before it."""
        if not data:
            return False
        connection = self.links.connection
        whole = connection.between_messages
        try:
            for message in connection.receive(data):
                self._take(message)
                whole = whole and self._result is not None
        except RemoteProtocolError:
            self._breach = "protocol"
            self._eof = True
            self._kill_worker()
        return whole

    def _take(self, message: WorkerMessage) -> None:
        kind = type(message)
        if kind is Result:
            assert isinstance(message, Result)
            if message.cell != self.cell:
                raise RemoteProtocolError("the result of another cell")
            self._result = message
        elif isinstance(message, Call):
            self._take_call(message)
        elif isinstance(message, Answered):
            self._take_answer(message)
        else:
            self._asked = message

    def _take_call(self, call: Call) -> None:
        if call.name == MEMFD:
            self._lending.ask(call)
            self._lend()
            return
        if call.name == STREAMS:
            self._give_streams(call)
            return
        if call.cell != self.cell or self._clocks is None or self._result is not None:
            self._send(refusal(call.call, "Cancelled", "the cell that made this call has ended"))
            return
        if call.call in self._calls.running:
            raise RemoteProtocolError("a call number is used twice")
        if call.name in PAGING:
            self._send(page(self.output.history, call, len(self.outbox)))
            return
        refused = self._calls.refused(call)
        if refused is not None:
            self._send(refused)
            return
        self._clocks.call_begins(_monotonic(), self.cpu_seconds())
        self._calls.begin(call, self.cell)
        self.called += 1

    def _lend(self) -> None:
        """Hand over the file in memory that the worker asks for, if it does.

        It goes with the first byte of what is sent, so all before that must have been sent.
        """
        if not self.outbox and (lent := self._lending.reply()) is not None:
            reply, descriptor = lent
            self._send(reply, () if descriptor is None else (descriptor,))

    def _give_streams(self, call: Call) -> None:
        """Give the worker its standard output and error, which code has closed.

        A worker that does not read what it is given cannot have more of it.
        """
        late = call.cell != self.cell or self._result is not None
        if late or not self.outbox.is_read():
            self._send(refusal(call.call, "Cancelled", "there are no streams now"))
            return
        given: list[int] = []
        try:
            for stream, fd in enumerate((self.links.stdout, self.links.stderr), 1):
                given.append(write_end(fd, stream))
            self._send(Reply(call.call, True, b"null"), given)
        except OSError as error:
            self._send(refusal(call.call, "OSError", f"{error.strerror}"))
        finally:
            for fd in given:
                os.close(fd)

    def _reply(self) -> None:
        for reply in self._calls.replies(self.cell):
            if self._clocks is not None:
                self._clocks.call_ends(_monotonic(), self.cpu_seconds())
            self._answers.decided(reply.call, reply.ok)
            self._send(reply)

    def _take_answer(self, answered: Answered) -> None:
        if answered.cell != self.cell or self._clocks is None or self._result is not None:
            self._send(refusal(answered.call, "Cancelled", "the cell that answered has ended"))
            return
        if answered.call in self._calls.running:
            raise RemoteProtocolError("a call number is used twice")
        try:
            verdict = self._answers.offer(answered, self._on_answer)
        except ValueError as error:
            self._send(refusal(answered.call, "ValueError", str(error)))
            return
        if verdict is None:
            self._send(Reply(answered.call, True, b"null"))
            return
        self._clocks.call_begins(_monotonic(), self.cpu_seconds())
        call = Call(answered.call, self.cell, "on_answer", b"")
        self._calls.wait_for(verdict, call, len(answered.answer.text))
        self._wait_also_for(self._calls.wakes)

    def _refuse_open_calls(self) -> None:
        self._answers.leave_undecided()
        for call in self._calls.end():
            if not self._dead:
                self._send(refusal(call, "Cancelled", "the cell that made this call has ended"))
            if self._clocks is not None:
                self._clocks.call_ends(_monotonic(), self.cpu_seconds())
