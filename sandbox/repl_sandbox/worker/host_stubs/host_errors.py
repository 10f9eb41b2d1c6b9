"""Exceptions of host functions as a session raises them, which `except ValueError` catches.

Each is a HostCallError and of the built-in class that the host's exception derives from.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

from ...errors import HostCallError

# Of these no exception can be made from a message, or `except` is not all that looks for them: a
# StopIteration ends a loop. Exception itself is what HostCallError is without a further base.
_LEFT_OUT = frozenset({
    "Exception", "ExceptionGroup", "StopAsyncIteration", "StopIteration",
    "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError",
})  # fmt: skip
_BASES: dict[str, type[Exception]] = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and name not in _LEFT_OUT
}
# How an OSError shows its number, its words and the file, and a KeyError its key, where that is
# simple: a text without quotes and backslashes, or a number.
_SYSTEM_ERROR = re.compile(r"\[Errno (-?\d{1,9})\] (.*?)(?:: '([^'\\]*)')?", re.DOTALL)
_KEY = re.compile(r"'([^'\\]*)'|(-?\d{1,18})")

# Names come from the host, and a host may make classes as it goes.
_MOST_CLASSES = 256
_classes: dict[tuple[str, str], type[HostCallError]] = {}


def host_error(kind: str, message: str, base: str = "") -> HostCallError:
    """The exception to raise for the host's of the class named `kind`.

    `base` names the nearest built-in class that it derives from; "" is `kind` itself. A plain
    HostCallError stands for a `base` that cannot be one here.
    """
    base = base or kind
    if base not in _BASES:
        return HostCallError(kind, message)
    made = _classes.get((kind, base))
    if made is None:
        made = _class(kind, base)
        if len(_classes) < _MOST_CLASSES:
            _classes[kind, base] = made
    return made(message)  # type: ignore[call-arg]


def _arguments(base: type[Exception], message: str) -> tuple[object, ...]:
    """The arguments with which an exception of class `base` would show `message`."""
    if issubclass(base, OSError) and (found := _SYSTEM_ERROR.fullmatch(message)):
        number, words, file = found.groups()
        return (int(number), words) if file is None else (int(number), words, file)
    if issubclass(base, KeyError) and (found := _KEY.fullmatch(message)):
        text, number = found.groups()
        return (int(number) if text is None else text,)
    return (message,)


def _class(kind: str, base: str) -> Any:
    def __init__(self: Any, *args: object) -> None:  # noqa: N807
        message = str(args[0]) if args else ""
        _BASES[base].__init__(self, *(_arguments(_BASES[base], message) if args else ()))
        self.type, self.message = kind, message

    def __str__(self: Any) -> str:  # noqa: N807 (a KeyError would show its message quoted)
        return str(self.message)

    def __reduce__(self: Any) -> tuple[Any, ...]:  # noqa: N807
        return host_error, (kind, self.message, base), vars(self)

    body = {
        "__init__": __init__,
        "__str__": __str__,
        "__reduce__": __reduce__,
        "__module__": "host",
    }
    name = kind if kind.isidentifier() else base
    body["__doc__"] = f"Raised when a function of the host has raised a {name}."
    return type(name, (HostCallError, _BASES[base]), body)
