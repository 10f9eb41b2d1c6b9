"""Limits of a header by its message type, checked before the header is parsed. No I/O.

A parser holds the interpreter and thereby the event loop of a host: 300 ms for 2 MiB of empty
lists. The first bytes of a header give the type, and the type gives the limits of length and number
of values.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import RemoteProtocolError
from .frames import MAX_HEADER
from .values.json_value_count import more_values
from .values.raw_arguments import MAX_PARTS

# Characters. A cell can bind a name of any length and raise a message of any length. The sender
# cuts them, so that no cell can make its own worker exceed the limits of a frame.
MAX_NAME: Final = 200
MAX_MESSAGE: Final = 4096
# The sender cuts each kind of lost resource well before (snapshots/lost_resources.py).
MAX_LOST: Final = 256
# More than the worker ever sends, so a hostile worker cannot make the host build longer tuples.
MAX_CHANGES: Final = 256
MAX_FIGURES: Final = 16

# Bytes of a header that has only counts and short words.
SHORT_HEADER: Final = 512
# Bytes of one character as a JSON escape: two surrogates.
_ESCAPE = 12
_CHANGE_VALUES = 6  # a list of five
_PART_VALUES = 4  # a list of three
_FEW = 16


class HeaderLimit(NamedTuple):
    """Limits of the headers of one type: fields including the type, bytes, and values.

    `blob`: whether a blob may follow the header.
    """

    fields: int
    size: int = SHORT_HEADER
    values: int = _FEW
    blob: bool = True


# The host is trusted: its headers may have any length; its unknown fields are refused all the same.
_HOST = MAX_HEADER, MAX_HEADER
FORMS: Final = MappingProxyType(
    {
        "ready": HeaderLimit(2, blob=False),
        "restored": HeaderLimit(
            3, SHORT_HEADER + MAX_LOST * (_ESCAPE * MAX_NAME + 3), MAX_LOST + _FEW, blob=False
        ),
        "call": HeaderLimit(5, 1 << 20, _PART_VALUES * MAX_PARTS + _FEW),
        "answered": HeaderLimit(6),
        "result": HeaderLimit(7, MAX_HEADER, _CHANGE_VALUES * MAX_CHANGES + MAX_FIGURES + 2 * _FEW),
        "value": HeaderLimit(1),
        "variables": HeaderLimit(1),
        "failed": HeaderLimit(3, SHORT_HEADER + _ESCAPE * MAX_MESSAGE, blob=False),
        "configure": HeaderLimit(5, *_HOST),
        "assign": HeaderLimit(4, *_HOST),
        "fetch": HeaderLimit(2, *_HOST, blob=False),
        "list": HeaderLimit(1, *_HOST, blob=False),
        "save": HeaderLimit(3, *_HOST, blob=False),
        "load": HeaderLimit(2, *_HOST),
        "reply": HeaderLimit(3, *_HOST),
    }
)

# JSON encoders differ in the space after the colon, and keep the order of the fields.
_TYPE = re.compile(rb'\{"type": ?"([a-z]{1,20})"[,}]')


def kind_of(header: bytes, blob: bytes) -> str:
    """Return the message type of a header, after its length, values and blob were checked.

    Raises:
        RemoteProtocolError: the header does not begin with a known type, or exceeds the limits of
            that type.
    """
    found = _TYPE.match(header)
    if found is None:
        raise RemoteProtocolError("a header does not begin with its message type")
    kind = found[1].decode()
    form = FORMS.get(kind)
    if form is None:
        raise RemoteProtocolError(f"unknown message type {kind!r}")
    if len(header) > form.size:
        raise RemoteProtocolError(f"a {kind} header of {len(header)} bytes, not {form.size}")
    if more_values(header, form.values):
        raise RemoteProtocolError(f"a {kind} header with more than {form.values} values")
    if blob and not form.blob:
        raise RemoteProtocolError(f"a {kind} message with a blob")
    return kind
