"""`MessageDispatch`: hands each thing that comes in from a session to the part that it concerns."""

from __future__ import annotations

from ..errors import RemoteProtocolError
from ..protocol.messages import Answered, HostCall, Result, WorkerMessage
from .cells.running_cell import RunningCell
from .host_functions.host_call_handler import HostCallHandler
from .io import SessionIO
from .output import OutputCapture


class MessageDispatch:
    """The handler of a session's `io`."""

    def __init__(
        self, io: SessionIO, cell: RunningCell, calls: HostCallHandler, output: OutputCapture
    ) -> None:
        self._io, self._cell, self._calls, self._output = io, cell, calls, output

    def take(self, message: WorkerMessage) -> None:
        """Take in one message of the worker; RemoteProtocolError if it is against the rules."""
        kind = type(message)
        if kind is Result:
            assert isinstance(message, Result)
            if message.cell != self._cell.number:
                raise RemoteProtocolError("the result of another cell")
            self._cell.result = message
        elif isinstance(message, HostCall):
            self._calls.take(message)
        elif isinstance(message, Answered):
            self._calls.take_answer(message)
        else:
            self._io.answer = message

    def wake(self, fd: int) -> None:
        """Take in output, or else send the replies that wait."""
        if not self._output.read(fd):
            self._calls.reply()
