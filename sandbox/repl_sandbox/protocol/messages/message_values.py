"""Fields of headers and rows in messages, checked one by one as they are read."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

from ...errors import RemoteProtocolError
from ...types import Change, ErrorInfo, Variable
from ..header_limits import MAX_NAME
from ..values.json_text import dump_header

# Sizes, numbers and lengths are below this: a signed 64-bit integer, as other languages have it.
MAX_COUNT = 1 << 63
# Bytes of all figures of a cell.
MAX_FIGURE_BYTES = 8 << 20

Header: TypeAlias = dict[str, Any]

_CHANGE_KINDS = frozenset(("new", "modified", "deleted"))
_PNG = b"\x89PNG\r\n\x1a\n"
_quote = json.encoder.encode_basestring_ascii


def read_count(header: Header, name: str) -> int:
    """Return the field `name`, which must be an integer from 0 to below `MAX_COUNT`."""
    value = header[name]
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError(f"{name} is not a count")
    return value


def read_text_field(header: Header, name: str) -> str:
    """Return the field `name`, which must be text."""
    value = header[name]
    if type(value) is not str:
        raise TypeError(f"{name} is not text")
    return value


def read_list(header: Header, name: str, limit: int) -> list[Any]:
    """Return the field `name`, which must be a list of at most `limit` items."""
    value = header[name]
    if type(value) is not list or len(value) > limit:
        raise TypeError(f"{name} is not a list of at most {limit}")
    return value


def read_row(row: Any, count: int, name: str) -> list[Any]:
    """Return `row` if it is a list of `count` fields; TypeError otherwise."""
    if type(row) is not list or len(row) != count:
        raise TypeError(f"{name} is not a list of {count} fields")
    return row


def read_change(row: Any) -> Change:
    """Return the change that a row describes."""
    kind, name, type_name, size, preview = read_row(row, 5, "change")
    if (
        type(kind) is str
        and kind in _CHANGE_KINDS
        and type(name) is str
        and type(type_name) is str
        and type(size) is int
        and 0 <= size < MAX_COUNT
        and type(preview) is str
    ):
        return Change(kind, name, type_name, size, preview)  # type: ignore[arg-type]
    raise TypeError("a field of a change has the wrong type")


def dump_changes(changes: Iterable[Change]) -> str:
    """`changes` as JSON rows, written out: a dict through the encoder costs four times as much."""
    rows = [
        f'["{c.kind}",{_quote(c.name[:MAX_NAME])},{_quote(c.type)},{count_or_zero(c.size)},'
        f"{_quote(c.preview)}]"
        for c in changes
    ]
    return f"[{','.join(rows)}]"


def read_variable(row: Any) -> Variable:
    """Return the variable that a row describes."""
    name, type_name, size, preview = read_row(row, 4, "variable")
    if (
        all(type(text) is str for text in (name, type_name, preview))
        and type(size) is int
        and 0 <= size < MAX_COUNT
    ):
        return Variable(name, type_name, size, preview)
    raise TypeError("a field of a variable has a field of the wrong type")


def read_error(row: Any) -> ErrorInfo:
    """Return the error that a row describes."""
    type_name, message, traceback, line = read_row(row, 4, "error")
    if all(type(text) is str for text in (type_name, message, traceback)) and (
        line is None or (type(line) is int and 0 <= line < MAX_COUNT)
    ):
        return ErrorInfo(type_name, message, traceback, line)
    raise TypeError("a field of the error has the wrong type")


def dump_error(error: ErrorInfo) -> str:
    """Return `error` as a JSON row."""
    line = error.line  # a SyntaxError that a cell constructs can carry any number
    is_valid = line is not None and 0 <= line < MAX_COUNT
    return dump_header([error.type, error.message, error.traceback, line if is_valid else None])


def cut_figures(sizes: list[Any], blob: bytes, start: int) -> tuple[tuple[bytes, ...], int]:
    """Return the figures of these sizes from `blob`, and the position behind them."""
    figures = []
    for size in sizes:
        figure = blob[start : start + read_count({"figure": size}, "figure")]
        if not figure.startswith(_PNG):
            raise ValueError("a figure is not a PNG")
        figures.append(figure)
        start += size
    if sum(map(len, figures)) > MAX_FIGURE_BYTES:
        raise ValueError("the figures are too large")
    return tuple(figures), start


def count_or_zero(number: int) -> int:
    """`number`, or 0 if the protocol cannot carry it: arrays can lie about their size."""
    return number if 0 <= number < MAX_COUNT else 0


def read_fixed_header(form: struct.Struct, header: bytes) -> tuple[int, ...]:
    """Return the numbers of a header of fixed size."""
    if len(header) != form.size:
        raise RemoteProtocolError(f"a short header of {len(header)} bytes, not {form.size}")
    numbers = form.unpack(header)
    if max(numbers) >= MAX_COUNT:
        raise RemoteProtocolError("a number in a short header is not a count")
    return numbers
