"""JSON text: written for the other side, and read from it within bounds."""

from __future__ import annotations

import array
import itertools
import json
import math
import re
import sys
from typing import Any, cast

from ...errors import RemoteProtocolError
from ...types import JSON
from .json_conversion import encoded
from .json_value_count import more_values, values
from .utf8_text import LONE_SURROGATE

# Lists and objects in one another. JSON readers have a limit of their own that depends on the
# interpreter and its stack (serde_json: 128, CPython: some 1,000 to 10,000); this one is the same
# on both sides, and what passes it can be walked by recursion everywhere on the host.
MAX_DEPTH = 128
# Lists and objects in one JSON text. Three bytes of text can make an object of 72 bytes, and the
# garbage collector walks each: 64 MiB of `[],` would cost the host 1.5 GB and half a minute.
MAX_CONTAINERS = 1 << 20
# Values in the JSON of a call's arguments. Two bytes can make one, which takes a host 32 bytes and
# a third of a microsecond: 64 MiB of them would hold its event loop for five seconds.
MAX_ARGUMENT_VALUES = 1 << 20
# Bytes of an answer's text, and values in it. A host has answers looked at, scored and written
# down, each of which takes as long as to read them.
MAX_ANSWER = 8 << 20
MAX_ANSWER_VALUES = 1 << 18
# As JSON: each byte of a text can be an escape, and quotes are around it.
_LONGEST_ANSWER = 6 * MAX_ANSWER + 2
_SHORT_ANSWER = 1 << 10
# Digits of a number, CPython's own limit for reading one (int's "max_str_digits").
MAX_DIGITS = 4300

# ASCII only, so that a lone surrogate travels as an escape and is dealt with by the reader.
dump_header = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def dump_json(value: object) -> bytes:
    """`value`, converted as `conversion.encoded` does, as JSON bytes.

    TypeError or ValueError where the protocol cannot carry it.
    """
    data = encoded(value).encode()
    if problem := _misshapen(data):
        raise ValueError(problem)
    # Python writes longer numbers only where somebody has lifted its limit.
    if len(data) > MAX_DIGITS and not 0 < _most_digits() <= MAX_DIGITS and _has_long_number(data):
        raise ValueError(f"a number of more than {MAX_DIGITS:,} digits")
    return data


_most_digits = sys.get_int_max_str_digits


def parse_json(data: bytes) -> JSON:
    """JSON from the other side; text in it has no lone surrogates afterwards.

    Raises:
        RemoteProtocolError: not JSON, not UTF-8, not finite, or past `MAX_DEPTH` or
            `MAX_CONTAINERS`.
    """
    if problem := _misshapen(data):
        raise RemoteProtocolError(problem)
    return parse_header(data)


def parse_arguments(data: bytes) -> JSON:
    """As `parse_json`, of a call's arguments, which have at most `MAX_ARGUMENT_VALUES`."""
    if more_values(data, MAX_ARGUMENT_VALUES):
        raise RemoteProtocolError(f"a call with more than {MAX_ARGUMENT_VALUES:,} values")
    return parse_json(data)


def parse_answer(data: bytes) -> JSON:
    """As `parse_json`, of an answer, which has at most `MAX_ANSWER_VALUES`.

    Raises:
        ValueError: it is too large.
    """
    count_answer_values(data)
    return parse_json(data)


def count_answer_values(data: bytes) -> int:
    """About how many values an answer has; ValueError if it is too large."""
    # A short one is not looked at: it has no more than so many.
    found = len(data) // 2 if len(data) < _SHORT_ANSWER else values(data, MAX_ANSWER_VALUES)
    if found is None or len(data) > _LONGEST_ANSWER:
        raise ValueError(
            f"larger than {MAX_ANSWER >> 20} MiB, or more than {MAX_ANSWER_VALUES:,} values"
        )
    return found


def parse_header(data: bytes) -> JSON:
    """As `parse_json`, but for its two limits: a header is too small to need them."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end != len(text):
            raise ValueError("text after the value")
        # Lone surrogates can only have come as escapes; without one there is nothing to clean.
        if "\\u" in text:
            return _clean(value)
    except (ValueError, RecursionError, StopIteration) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    return cast(JSON, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


# The C scanner itself, without the search for white space around the value that `decode` makes: no
# peer of this protocol writes any.
_scan = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).scan_once  # type: ignore[attr-defined]
_TOO_DEEP = f"JSON nested more than {MAX_DEPTH} deep"
_TOO_MANY = f"JSON of more than {MAX_CONTAINERS:,} lists and objects"
# To the end of the data if the string does not end: each byte is looked at once, whatever it is.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))


def _misshapen(data: bytes) -> str:
    """How the JSON `data` passes a limit, or ""; found without parsing it."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return ""
    steps = _STRING.sub(b"", data).translate(_STEPS, _NO_BRACKET)
    if steps.count(1) > MAX_CONTAINERS:
        return _TOO_MANY
    depth = max(itertools.accumulate(array.array("b", steps)), default=0)
    return _TOO_DEEP if depth > MAX_DEPTH else ""


_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))


def _has_long_number(data: bytes) -> bool:
    return _LONG_NUMBER.search(_STRING.sub(b"", data)) is not None


def _clean(value: Any) -> JSON:
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _clean(key)): _clean(item) for key, item in value.items()}
    return cast(JSON, value)
