"""Bytes among JSON: `{"$bytes": base64}`, for contexts, files and variables.

Client and server use this. `{"$json": value}` is `value` itself, so that an object that looks like
one of the two can be given as well. A file, which is no object, may be `{"$upload": sha256}` too.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

BYTES, JSON, UPLOAD = "$bytes", "$json", "$upload"

# Each is a round trip to the session, and a name in every observation.
MOST_CONTEXTS = 256
# Entries of a workspace that an episode begins with, or is saved with.
MOST_FILES = 10_000

# Characters of base64 that are decoded at once. The decoder holds the interpreter, and other
# threads, among them an event loop's, get it between two of these. A multiple of 4.
_PIECE = 1 << 20


class WireValueError(ValueError):
    """A value that is none. `place` says where in the arguments it is."""

    def __init__(self, place: tuple[str, ...], problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(": ".join([".".join(place), problem] if place else [problem]))


def encoded(value: object) -> object:
    """One value as it goes over the wire."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {BYTES: base64.b64encode(value).decode("ascii")}
    return {JSON: value} if _mark(value) is not None else value


def upload_of(value: object) -> str | None:
    """The hash of the upload that a file is; None if it is none."""
    sha256 = value.get(UPLOAD) if isinstance(value, dict) and len(value) == 1 else None
    return sha256 if isinstance(sha256, str) else None


def decode(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reset with the values that they stand for.

    What is no object where one of names belongs, is left to whom it is for.

    Raises:
        WireValueError: base64 that is none, or too many entries.
    """
    given = dict(arguments)
    if "context" in given:
        given["context"] = decoded(given["context"], ("context",))
    for field, most in (("contexts", MOST_CONTEXTS), ("files", MOST_FILES)):
        named = given.get(field)
        if not isinstance(named, Mapping):
            continue
        if len(named) > most:
            raise WireValueError((field,), f"{len(named):,} entries; the limit is {most:,}")
        given[field] = {name: decoded(value, (field, name)) for name, value in named.items()}
    return given


async def decode_aside(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`decode` on an event loop: megabytes in a thread, in pieces that leave room for others."""
    named = (arguments.get(field) for field in ("contexts", "files"))
    every = [value for each in named if isinstance(each, Mapping) for value in each.values()]
    marked = [value[BYTES] for value in (arguments.get("context"), *every) if _mark(value) == BYTES]
    if sum(len(text) for text in marked if isinstance(text, str)) < _PIECE:
        return decode(arguments)
    return await asyncio.to_thread(decode, arguments)


def decoded(value: object, place: tuple[str, ...] = ()) -> object:
    """The value that came as `value`.

    Raises:
        WireValueError: base64 that is none.
    """
    mark = _mark(value)
    return value if mark is None else _UNMARK[mark](value[mark], place)  # type: ignore[index]


def _mark(value: object) -> str | None:
    """The one key of an object if it says what the object stands for."""
    if isinstance(value, dict) and len(value) == 1:
        (key,) = value
        return key if key in _UNMARK else None
    return None


def _bytes(text: object, place: tuple[str, ...]) -> bytes:
    if not isinstance(text, str):
        raise WireValueError(place, f"{BYTES} must be a string of base64")
    # Checked for the whole: each piece below might end in a padding of its own, and Python 3.11
    # takes one that is too much.
    if len(text) % 4 or 0 <= text.find("=") < len(text) - 2:
        raise WireValueError(place, "no base64: the padding is wrong")
    data = bytearray()
    try:
        for start in range(0, len(text), _PIECE):
            data += binascii.a2b_base64(text[start : start + _PIECE], strict_mode=True)
    except ValueError as error:  # binascii.Error is one
        raise WireValueError(place, f"no base64: {error}") from None
    return bytes(data)


_UNMARK: dict[str, Callable[[Any, tuple[str, ...]], object]] = {
    BYTES: _bytes,
    JSON: lambda value, _place: value,
}
