"""`MessageDispatch`: passes each input of a session to the part that handles it."""

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
        """Handle one message of the worker; raise RemoteProtocolError if it breaks the protocol."""
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
        """Read output, or else send the replies that are ready."""
        if not self._output.read(fd):
            self._calls.reply()
