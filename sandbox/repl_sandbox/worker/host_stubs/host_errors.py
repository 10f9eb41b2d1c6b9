"""Exceptions of host functions as a session raises them; `except ValueError` catches them.

Each is a HostCallError and an instance of the nearest built-in class of the host's exception.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

from ...errors import HostCallError

# Classes that cannot be built from a message, or that more than `except` reacts to: a StopIteration
# ends a loop. Exception itself equals a HostCallError without a further base.
_LEFT_OUT = frozenset({
    "Exception", "ExceptionGroup", "StopAsyncIteration", "StopIteration",
    "UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError",
})  # fmt: skip
_BASES: dict[str, type[Exception]] = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, Exception) and name not in _LEFT_OUT
}
# The display of an OSError's number, message and file, and of a KeyError's key, where that is
# simple: text without quotes and backslashes, or a number.
_SYSTEM_ERROR = re.compile(r"\[Errno (-?\d{1,9})\] (.*?)(?:: '([^'\\]*)')?", re.DOTALL)
_KEY = re.compile(r"'([^'\\]*)'|(-?\d{1,18})")

# Names come from the host, and a host may create classes without end.
_MAX_CLASSES = 256
_classes: dict[tuple[str, str], type[HostCallError]] = {}


def host_error(kind: str, message: str, base: str = "") -> HostCallError:
    """Return the exception to raise for a host exception of the class named `kind`.

    `base` names its nearest built-in base class; "" means `kind` itself. A plain HostCallError
    stands for a `base` that cannot be raised here.
    """
    base = base or kind
    if base not in _BASES:
        return HostCallError(kind, message)
    cls = _classes.get((kind, base))
    if cls is None:
        cls = _class(kind, base)
        if len(_classes) < _MAX_CLASSES:
            _classes[kind, base] = cls
    return cls(message)  # type: ignore[call-arg]


def _arguments(base: type[Exception], message: str) -> tuple[object, ...]:
    """Return the arguments with which an exception of class `base` displays `message`."""
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
