"""`AttachedFile`: the file in memory that goes with a question, for the worker to ask for.

It is not sent with the question itself. A worker that waits for a command would have to look for a
descriptor beside each, by recvmsg(2), which takes a step two microseconds longer than recv(2).
"""

from __future__ import annotations

from ...errors import RemoteProtocolError
from ...protocol.messages import MEMFD, HostCall, HostReply
from ..host_functions.function_executor import refusal, success


class AttachedFile:
    """What one session is offered. A descriptor is handed over once, and while it is offered only:
    afterwards its number may be another file's."""

    __slots__ = ("_asked", "_offered")

    def __init__(self) -> None:
        self._offered: int | None = None
        self._asked: HostCall | None = None

    def offer(self, descriptor: int | None) -> None:
        """From here on the worker may have `descriptor`; None: no more."""
        self._offered = descriptor

    def ask(self, call: HostCall) -> None:
        """The worker asks, by a call of `MEMFD`.

        Raises:
            RemoteProtocolError: it has asked, and was not answered yet.
        """
        if self._asked is not None:
            raise RemoteProtocolError(f"{MEMFD} is called twice")
        self._asked = call

    def forget(self) -> None:
        """Who asked is gone."""
        self._asked = None

    def reply(self) -> tuple[HostReply, int | None] | None:
        """What to say to who asks, and what to send beside it; None if nobody does."""
        call, self._asked = self._asked, None
        if call is None:
            return None
        descriptor, self._offered = self._offered, None
        if descriptor is None:
            return refusal(call.call, "Cancelled", "what it was for has been given up"), None
        return success(call, None), descriptor
