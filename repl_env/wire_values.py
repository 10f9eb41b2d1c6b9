"""Bytes in the arguments of a reset, as JSON carries them: `{"$bytes": base64}`.

Client and server use this; contexts, named contexts and files may be bytes. `{"$json": value}` is
`value` itself, so that an object that looks like one of the two can be given as well.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repl_env import contexts

BYTES, JSON = "$bytes", "$json"

# Each is a round trip to the session, and a name in every observation.
MOST_CONTEXTS = 256
# As many as an episode can be saved with (`repl_env.resuming`).
MOST_FILES = 10_000

# Characters of base64 that are decoded at once. The decoder holds the interpreter, and other
# threads, among them an event loop's, get it between two of these. A multiple of 4.
_PIECE = 1 << 20


class WireValueError(ValueError):
    """A value that is none. `place` says where in the arguments it is."""

    def __init__(self, place: tuple[str, ...], problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{'.'.join(place)}: {problem}")


def encode(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reset, with their bytes and files for the wire.

    A `pathlib.Path` is read here: in `files` as bytes, else as text if it is UTF-8.

    Raises:
        OSError: a Path cannot be read.
    """
    told = dict(arguments)
    if told.get("context") is not None:
        told["context"] = _encoded(told["context"])
    for field in ("contexts", "files"):
        given = told.get(field)
        if isinstance(given, Mapping):
            told[field] = {name: _encoded(value, field) for name, value in given.items()}
    return told


def decode(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a reset as they were given to `encode`.

    Megabytes take a while: a server does this in a thread.

    Raises:
        WireValueError: base64 that is none, no object where one belongs, or too many entries.
    """
    given = dict(arguments)
    if given.get("context") is not None:
        given["context"] = _decoded(given["context"], ("context",))
    for field, most in (("contexts", MOST_CONTEXTS), ("files", MOST_FILES)):
        named = given.get(field)
        if named is None:
            continue
        if not isinstance(named, Mapping):
            raise WireValueError((field,), "an object of names is wanted")
        if len(named) > most:
            raise WireValueError((field,), f"{len(named):,} entries; the limit is {most:,}")
        given[field] = {name: _decoded(value, (field, name)) for name, value in named.items()}
    return given


def _encoded(value: object, field: str = "contexts") -> object:
    if isinstance(value, Path):
        value = value.read_bytes() if field == "files" else contexts.read(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {BYTES: base64.b64encode(value).decode("ascii")}
    return {JSON: value} if _mark(value) is not None else value


def _decoded(value: object, place: tuple[str, ...]) -> object:
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
