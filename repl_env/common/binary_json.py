"""Bytes in JSON: `{"$bytes": base64}`, and `{"$table": base64}`: contexts, files, variables.

Client and server share this encoding. `{"$json": value}` escapes an object that looks like a mark.
A file may also be `{"$upload": sha256}`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from repl_env.common.values import is_written_table

if TYPE_CHECKING:
    from repl_sandbox.tables import Table

BYTES, TABLE, JSON, UPLOAD = "$bytes", "$table", "$json", "$upload"

# Each variable is a round trip to the session and a name in every observation.
MAX_CONTEXTS = 256
# Workspace entries that an episode begins with or saves.
MAX_FILES = 10_000

# Characters of base64 that are decoded at once. The decoder holds the interpreter lock; other
# threads, such as an event loop's, get the lock between two pieces. A multiple of 4.
_PIECE = 1 << 20


class WireValueError(ValueError):
    """A value with an invalid encoding. `position` is its position in the arguments."""

    def __init__(self, position: tuple[str, ...], problem: str) -> None:
        self.position = position
        self.problem = problem
        super().__init__(": ".join([".".join(position), problem] if position else [problem]))


def encoded(value: object) -> object:
    """Return one value in its wire form."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {BYTES: base64.b64encode(value).decode("ascii")}
    if is_written_table(value):
        return {TABLE: base64.b64encode(value.data).decode("ascii")}
    return {JSON: value} if _mark(value) is not None else value


def upload_of(value: object) -> str | None:
    """Return the hash of the upload that a file refers to, or None."""
    sha256 = value.get(UPLOAD) if isinstance(value, dict) and len(value) == 1 else None
    return sha256 if isinstance(sha256, str) else None


def decode(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reset with their wire values decoded.

    A value that is not an object where an object of names belongs stays as it is; its consumer
    checks it.

    Raises:
        WireValueError: invalid base64, or too many entries.
    """
    decoded_arguments = dict(arguments)
    if "context" in decoded_arguments:
        decoded_arguments["context"] = decoded(decoded_arguments["context"], ("context",))
    for field, limit in (("contexts", MAX_CONTEXTS), ("files", MAX_FILES)):
        named = decoded_arguments.get(field)
        if not isinstance(named, Mapping):
            continue
        if len(named) > limit:
            raise WireValueError((field,), f"{len(named):,} entries; the limit is {limit:,}")
        decoded_arguments[field] = {
            name: decoded(value, (field, name)) for name, value in named.items()
        }
    return decoded_arguments


async def decode_async(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run `decode` on an event loop: large values in a thread, in pieces that let the loop run."""
    named = (arguments.get(field) for field in ("contexts", "files"))
    every = [value for each in named if isinstance(each, Mapping) for value in each.values()]
    values = (arguments.get("context"), *every)
    marked = [value[mark] for value in values if (mark := _mark(value)) in (BYTES, TABLE)]
    if sum(len(text) for text in marked if isinstance(text, str)) < _PIECE:
        return decode(arguments)
    return await asyncio.to_thread(decode, arguments)


def decoded(value: object, position: tuple[str, ...] = ()) -> object:
    """Return the decoded form of `value`.

    Raises:
        WireValueError: invalid base64, or no table.
    """
    mark = _mark(value)
    return value if mark is None else _UNMARK[mark](value[mark], position)  # type: ignore[index]


def _mark(value: object) -> str | None:
    """Return the key of a marked object, or None."""
    if isinstance(value, dict) and len(value) == 1:
        (key,) = value
        return key if key in _UNMARK else None
    return None


def _bytes(text: object, position: tuple[str, ...]) -> bytes:
    if not isinstance(text, str):
        raise WireValueError(position, "must be a string of base64")
    # Check the padding of the whole text: each piece below could end in padding of its own, and
    # Python 3.11 accepts surplus padding.
    if len(text) % 4 or 0 <= text.find("=") < len(text) - 2:
        raise WireValueError(position, "no base64: the padding is wrong")
    data = bytearray()
    try:
        for start in range(0, len(text), _PIECE):
            data += binascii.a2b_base64(text[start : start + _PIECE], strict_mode=True)
    except ValueError as error:  # includes binascii.Error
        raise WireValueError(position, f"no base64: {error}") from None
    return bytes(data)


def _table(text: object, position: tuple[str, ...]) -> Table:
    from repl_sandbox.tables import Table  # imported here: a server decodes, and has the engine

    try:
        return Table.from_bytes(_bytes(text, position))
    except WireValueError:
        raise
    except ValueError as error:
        raise WireValueError(position, str(error)) from None


_UNMARK: dict[str, Callable[[Any, tuple[str, ...]], object]] = {
    BYTES: _bytes,
    TABLE: _table,
    JSON: lambda value, _place: value,
}
