"""`AttachedFile`: a file in memory that belongs to a request, for the worker to ask for.

It is not sent with the request: a worker that waits for requests would have to receive each by
recvmsg(2), which takes a step two microseconds longer than recv(2).
"""

from __future__ import annotations

from ...errors import RemoteProtocolError
from ...protocol.messages import MEMFD, HostCall, HostReply
from ..host_functions.call_codec import refusal, success


class AttachedFile:
    """The file that is offered to one session. Its descriptor is sent once, and only while it is
    offered: afterwards its number may be another file's.
    """

    __slots__ = ("_call", "_offered")

    def __init__(self) -> None:
        self._offered: int | None = None
        self._call: HostCall | None = None

    def offer(self, descriptor: int | None) -> None:
        """Offer `descriptor` to the worker; None: no file."""
        self._offered = descriptor

    def ask(self, call: HostCall) -> None:
        """Note that the worker asks, by a call of `MEMFD`.

        Raises:
            RemoteProtocolError: it has already asked, and has no reply yet.
        """
        if self._call is not None:
            raise RemoteProtocolError(f"{MEMFD} is called twice")
        self._call = call

    def forget(self) -> None:
        """Forget the request of a worker that is gone."""
        self._call = None

    def reply(self) -> tuple[HostReply, int | None] | None:
        """Return the reply and its descriptor; None if the worker has not asked."""
        call, self._call = self._call, None
        if call is None:
            return None
        descriptor, self._offered = self._offered, None
        if descriptor is None:
            return refusal(
                call.call, "Cancelled", "the request that the file belongs to was given up"
            ), None
        return success(call, None), descriptor
