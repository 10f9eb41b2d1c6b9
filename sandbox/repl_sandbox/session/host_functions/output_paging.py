"""`page`: replies to requests for earlier output, by `_out`, without leaving the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import RemoteProtocolError
from ...protocol.messages import HostCall, HostReply
from ...worker.variables.output_history import LENGTH, PAGE, TEXT
from ..output import History
from .call_codec import arguments, refusal, success

# Bytes of replies that a worker may leave unread: sixteen threads may read pages at once, and one
# chunk from a worker can request hundreds.
_MAX_PAGED = 16 * PAGE
# Bytes of a call's arguments: three numbers and the name of a stream.
_MAX_ARGUMENTS = 1 << 10


def page(history: History, call: HostCall, unread: int) -> HostReply:
    """Return the reply to a PAGING call of a worker with `unread` bytes of earlier replies.

    Raises:
        RemoteProtocolError: the arguments are not those that `_out` sends.
    """
    if len(call.data) > _MAX_ARGUMENTS or call.parts:
        _bad_paging(call)
    args, _ = arguments(call)
    if unread > _MAX_PAGED:
        return refusal(call.call, "TooManyCalls", "earlier pages are not read yet")
    return PAGING[call.name](history, call, args)


def _length(history: History, call: HostCall, args: list[Any]) -> HostReply:
    match args:
        case [int(cell), str(stream)]:
            return success(call, history.length(cell, stream))
    _bad_paging(call)


def _text(history: History, call: HostCall, args: list[Any]) -> HostReply:
    match args:
        case [int(cell), str(stream), int(start), int(stop)] if stop - start <= PAGE:
            return success(call, history.text(cell, stream, start, stop))
    _bad_paging(call)


def _bad_paging(call: HostCall) -> NoReturn:
    raise RemoteProtocolError(f"arguments of {call.name}")


# A name that no host function can have.
PAGING: dict[str, Callable[[History, HostCall, list[Any]], HostReply]] = {
    LENGTH: _length,
    TEXT: _text,
}
