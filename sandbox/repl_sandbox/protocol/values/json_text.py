"""JSON text: written for the other side, and parsed from it within bounds."""

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

# Nesting of lists and objects. Limits of JSON readers depend on the interpreter and its stack
# (serde_json: 128, CPython: some 1,000 to 10,000). This limit is the same on both sides, and the
# host may walk any accepted value by recursion.
MAX_DEPTH = 128
# Lists and objects in one JSON text. Three bytes of text can make an object of 72 bytes, and the
# garbage collector walks each: 64 MiB of `[],` would cost the host 1.5 GB and half a minute.
MAX_CONTAINERS = 1 << 20
# Values in the JSON of a call's arguments. Two bytes can make one value, which takes a host 32
# bytes and a third of a microsecond: 64 MiB of them would block its event loop for five seconds.
MAX_ARGUMENT_VALUES = 1 << 20
# Bytes of an answer's text, and values in an answer. A host inspects, scores and records answers,
# and each of these takes as long as parsing them.
MAX_ANSWER = 8 << 20
MAX_ANSWER_VALUES = 1 << 18
# Bytes as JSON: each byte of a text can be an escape of six, and two quotes surround it.
_LONGEST_ANSWER = 6 * MAX_ANSWER + 2
_SHORT_ANSWER = 1 << 10
# Digits of a number: CPython's own limit for reading one (int's "max_str_digits").
MAX_DIGITS = 4300

# ASCII only: a lone surrogate travels as an escape, and the reader replaces it.
dump_header = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def dump_json(value: object) -> bytes:
    """Return `value`, converted by `json_conversion.encoded`, as JSON bytes.

    Raises:
        TypeError, ValueError: the protocol cannot carry `value`.
    """
    data = encoded(value).encode()
    if problem := _malformed(data):
        raise ValueError(problem)
    # Python writes longer numbers only after code has lifted the interpreter's limit.
    if len(data) > MAX_DIGITS and not 0 < _most_digits() <= MAX_DIGITS and _has_long_number(data):
        raise ValueError(f"a number of more than {MAX_DIGITS:,} digits")
    return data


_most_digits = sys.get_int_max_str_digits


def parse_json(data: bytes) -> JSON:
    """Parse JSON from the other side; lone surrogates in its text are replaced.

    Raises:
        RemoteProtocolError: not JSON, not UTF-8, not finite, or past `MAX_DEPTH` or
            `MAX_CONTAINERS`.
    """
    if problem := _malformed(data):
        raise RemoteProtocolError(problem)
    return parse_header(data)


def parse_arguments(data: bytes) -> JSON:
    """Parse a call's arguments like `parse_json`, with at most `MAX_ARGUMENT_VALUES` values."""
    if more_values(data, MAX_ARGUMENT_VALUES):
        raise RemoteProtocolError(f"a call with more than {MAX_ARGUMENT_VALUES:,} values")
    return parse_json(data)


def parse_answer(data: bytes) -> JSON:
    """Parse an answer like `parse_json`, with at most `MAX_ANSWER_VALUES` values.

    Raises:
        ValueError: the answer is too large.
    """
    count_answer_values(data)
    return parse_json(data)


def count_answer_values(data: bytes) -> int:
    """Return about how many values an answer has; ValueError if the answer is too large."""
    # Counting would cost more than it saves for a short answer.
    found = len(data) // 2 if len(data) < _SHORT_ANSWER else values(data, MAX_ANSWER_VALUES)
    if found is None or len(data) > _LONGEST_ANSWER:
        raise ValueError(
            f"larger than {MAX_ANSWER >> 20} MiB, or more than {MAX_ANSWER_VALUES:,} values"
        )
    return found


def parse_header(data: bytes) -> JSON:
    """Parse JSON like `parse_json`, without its two limits: a header is too small to need them."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end != len(text):
            raise ValueError("text after the value")
        # Lone surrogates arrive only as escapes; text without an escape needs no cleaning.
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
# peer of this protocol writes white space there.
_scan = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).scan_once  # type: ignore[attr-defined]
_TOO_DEEP = f"JSON nested more than {MAX_DEPTH} deep"
_TOO_MANY = f"JSON of more than {MAX_CONTAINERS:,} lists and objects"
# Up to the end of the data if the string is unterminated, so each byte is read once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))


def _malformed(data: bytes) -> str:
    """Return the limit that the JSON `data` exceeds, or ""; `data` is not parsed."""
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
