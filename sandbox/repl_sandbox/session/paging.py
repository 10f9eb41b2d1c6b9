"""What `_out` in a session asks for: its earlier output, answered without leaving the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import RemoteProtocolError
from ..wire.messages import Call, Reply
from .host_functions import success
from .output import PAGE, History


def _length(history: History, call: Call, args: list[Any]) -> Reply:
    match args:
        case [int(cell), str(stream)]:
            return success(call, history.length(cell, stream))
    _bad_paging(call)


def _text(history: History, call: Call, args: list[Any]) -> Reply:
    match args:
        case [int(cell), str(stream), int(start), int(stop)] if stop - start <= PAGE:
            return success(call, history.text(cell, stream, start, stop))
    _bad_paging(call)


def _bad_paging(call: Call) -> NoReturn:
    raise RemoteProtocolError(f"arguments of {call.name}")


# By the names that no function of a user's can have.
PAGING: dict[str, Callable[[History, Call, list[Any]], Reply]] = {
    "_output_length": _length,
    "_output_text": _text,
}
