"""Arguments and replies of host calls: from the bytes of a message to Python values, and back."""

from __future__ import annotations

import builtins
from types import GeneratorType
from typing import Any

from ...errors import RemoteProtocolError
from ...protocol.frames import MAX_BLOB
from ...protocol.messages import HostCall, HostReply
from ...protocol.values.json_conversion import elements
from ...protocol.values.json_text import dump_json, parse_arguments
from ...protocol.values.raw_arguments import Place, Raw, each_part
from ...protocol.values.utf8_text import read_text

# Characters of an exception's message: a model reads it, and it travels in one frame.
_LONGEST_MESSAGE = 1 << 20

_built_in = vars(builtins)


def refusal(call: int, kind: str, message: str, base: str | None = None) -> HostReply:
    """Return the reply to a failed call: `kind` derives from the built-in class `base`, or is
    one.
    """
    derived = [] if base in (None, kind) else [base]
    return HostReply(call, False, dump_json([kind, message[:_LONGEST_MESSAGE], *derived]))


def failure(call: int, error: BaseException) -> HostReply:
    """Return the reply to a call whose function raised `error`."""
    kind = type(error)
    try:
        message = str(error)
    # Boundary: the class is the caller's, and without a reply the cell would wait for ever.
    except Exception as problem:  # noqa: BLE001
        message = f"<its message cannot be shown: __str__ raised {type(problem).__name__}>"
    base = next(cls.__name__ for cls in kind.__mro__ if _built_in.get(cls.__name__) is cls)
    return refusal(call, kind.__name__, message, base)


def arguments(
    call: HostCall, places: frozenset[Place] = frozenset()
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, with the raw ones in their places.

    Raises:
        RemoteProtocolError: they do not follow the protocol, or a raw one is at none of `places`.
    """
    parsed = parse_arguments(call.data)
    if not isinstance(parsed, list) or len(parsed) != 2:
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    args, kwargs = parsed
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise RemoteProtocolError("a call's arguments are not [args, kwargs]")
    for place, raw in call.parts:
        holder: Any = args if type(place) is int else kwargs
        exists = place < len(args) if isinstance(place, int) else place in kwargs
        if place not in places or not exists or holder[place] is not None:
            raise RemoteProtocolError("a raw argument has no place in its call")
        holder[place] = _value(raw)
    return args, kwargs


def _value(raw: Raw) -> object:
    if isinstance(raw, tuple):
        return [part and _value(part) for part in raw]
    if raw.kind == "bytes":
        return raw.data
    try:
        return read_text(raw.data)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a raw text is not UTF-8") from None


def size(call: HostCall) -> int:
    """The size of a call's arguments in bytes."""
    return len(call.data) + sum(len(part.data) for _, raw in call.parts for part in each_part(raw))


def success(call: HostCall, value: object) -> HostReply:
    """Return the reply that carries `value`, or an error reply if JSON cannot.

    Raises:
        the exception of the body of a function that is a generator.
    """
    if isinstance(value, GeneratorType):
        value = elements(value)
    try:
        data = dump_json(value)
    except (TypeError, ValueError) as error:
        kind = "ValueError" if isinstance(error, ValueError) else "TypeError"
        return refusal(call.call, kind, f"{call.name} returned what JSON cannot carry: {error}")
    if len(data) > MAX_BLOB:
        return refusal(call.call, "ValueError", f"{call.name} returned {len(data):,} bytes of JSON")
    return HostReply(call.call, True, data)
