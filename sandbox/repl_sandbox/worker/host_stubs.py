"""Host functions as the code of a session sees them: calls, signatures, errors."""

from __future__ import annotations

import builtins
import errno
import itertools
import json
import os
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..errors import HostCallError
from ..protocol.frames import MAX_BLOB
from ..protocol.messages import (
    MEMFD,
    STREAMS,
    Answered,
    FunctionSchema,
    HostCall,
    HostReply,
    Parameter,
    Signature,
)
from ..protocol.values import (
    MAX_ARGUMENT_VALUES,
    MAX_PARTS,
    Parts,
    dump_json,
    each_part,
    more_values,
)
from ..types import Answer
from .channel import WorkerChannel
from .namespace import THREADS_ONLY
from .variables import read_table

# Exceptions of host functions as a session raises them; `except ValueError` catches them.
#
# Each is a HostCallError and an instance of the nearest built-in class of the host's exception.

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


# Stand-ins for host functions, for `inspect.signature`, `help` and checks of calls.
#
# A stand-in has the parameters of the host function and does nothing. It is made from the code
# object of an empty function, without compiling text.

_VARARGS, _VARKEYWORDS = 0x04, 0x08  # CO_VARARGS, CO_VARKEYWORDS
_types = {name: cls for name, cls in vars(builtins).items() if isinstance(cls, type)}


class StubSignature:
    """A host value that the session knows only by its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _empty() -> None:
    pass


def stand_in(name: str, signature: Signature) -> Any:
    """Return a function of this signature that does nothing."""
    by_kind: list[list[Parameter]] = [[] for _ in range(5)]
    for parameter in signature.parameters:
        by_kind[parameter.kind].append(parameter)
    only, either, more, keywords, others = by_kind
    names = tuple(each.name for each in (*only, *either, *keywords, *more, *others))
    code = _empty.__code__.replace(
        co_argcount=len(only) + len(either),
        co_posonlyargcount=len(only),
        co_kwonlyargcount=len(keywords),
        co_nlocals=len(names),
        co_varnames=names,
        co_flags=_empty.__code__.co_flags
        | (_VARARGS if more else 0)
        | (_VARKEYWORDS if others else 0),
        co_name=name,
        co_qualname=name,
        co_filename="<host>",
    )
    function = FunctionType(code, {}, name, tuple(map(_default, _with_default(only + either))))
    function.__kwdefaults__ = {each.name: _default(each) for each in _with_default(keywords)}
    function.__annotations__ = _annotations(signature)
    return function


def add_signature(call: Any, schema: FunctionSchema, like: Any) -> None:
    """Give `call` the signature and docs of the host function; `like` is its `stand_in`, if any."""
    call.__name__ = call.__qualname__ = schema.name
    call.__doc__ = schema.doc or f"{schema.name}: a function of the host."
    call.__annotations__ = {}
    if like is not None:
        call.__wrapped__, call.__annotations__ = like, like.__annotations__


def _with_default(parameters: list[Parameter]) -> list[Parameter]:
    return [each for each in parameters if each.default is not None]


def _default(parameter: Parameter) -> object:
    default = parameter.default
    assert default is not None
    return default.value if default.text is None else StubSignature(default.text)


def _annotations(signature: Signature) -> dict[str, object]:
    texts = {each.name: each.annotation for each in signature.parameters}
    texts["return"] = signature.returns
    return {
        name: None if text == "None" else _types.get(text) or StubSignature(text)
        for name, text in texts.items()
        if text is not None
    }


# Calls of host functions, from any thread of the session's code.

_loads = json.loads
_NO_ARGUMENTS = b"[[],{}]"


class HostCallClient:
    """Makes calls for the running cell, whose number is 0 while no cell runs."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self.cell = 0
        self.forked = False

    def function(self, schema: FunctionSchema) -> Callable[..., Any]:
        """Return a function that calls the host function with JSON arguments and a JSON result."""
        name = schema.name
        like = None if schema.signature is None else stand_in(name, schema.signature)
        check = like if schema.signature and schema.signature.checked else None

        def call(*args: Any, **kwargs: Any) -> Any:
            if check is not None:
                check(*args, **kwargs)
            return self.call(name, args, kwargs)

        add_signature(call, schema, like)
        return call

    def call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Parts = ()
    ) -> Any:
        """Call the host function `name` and return its result; `parts` are raw arguments.

        Raises:
            TypeError, ValueError: the arguments are not JSON, or too large.
            HostCallError: the function raised, or no cell is running; see `host_error`.
        """
        try:
            data = dump_json([args, kwargs])
        except TypeError as error:
            raise TypeError(f"{name}() takes JSON values only: {error}") from None
        except ValueError as error:
            raise ValueError(f"{name}() takes JSON values only: {error}") from None
        if parts:
            _check_parts(name, data, parts)
        elif len(data) > MAX_BLOB:
            raise ValueError(
                f"the arguments of {name}() are {len(data):,} bytes of JSON; "
                f"the limit is {MAX_BLOB:,}"
            )
        if more_values(data, MAX_ARGUMENT_VALUES):
            raise ValueError(
                f"the arguments of {name}() have more than {MAX_ARGUMENT_VALUES:,} values"
            )
        cell, number = self._begin()
        return self._result(HostCall(number, cell, name, data, parts))

    def answer(self, answer: Answer) -> None:
        """Send an answer to the host; ValueError with the host's message if refused."""
        cell, number = self._begin()
        try:
            self._result(Answered(number, cell, answer))
        except HostCallError as error:
            raise ValueError(error.message) from None

    def memfd(self) -> int:
        """Request the memfd that belongs to the current command.

        Raises:
            OSError: no descriptor number was free, because the session's code uses all of its
                limit; or the host no longer needs the file.
        """
        reply = self._channel.ask(HostCall(next(self._numbers), self.cell, MEMFD, _NO_ARGUMENTS))
        if not reply.ok:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        return self._channel.next_descriptor()

    def streams(self) -> tuple[int, int]:
        """Request new descriptors of the session's standard output and error.

        Raises:
            OSError: no descriptor number was free, or the host refuses now.
        """
        reply = self._channel.ask(HostCall(next(self._numbers), self.cell, STREAMS, _NO_ARGUMENTS))
        if not reply.ok:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        first = self._channel.next_descriptor()
        try:
            return first, self._channel.next_descriptor()
        except OSError:
            os.close(first)
            raise

    def _begin(self) -> tuple[int, int]:
        if self.forked:
            raise HostCallError(
                "ForkedProcess", f"a forked process cannot call the host; {THREADS_ONLY}"
            )
        if not self.cell:
            raise HostCallError("NoCell", "the cell that could make calls to the host has ended")
        return self.cell, next(self._numbers)

    def _result(self, message: HostCall | Answered) -> Any:
        reply: HostReply = self._channel.ask(message)
        value = read_table(reply.data) if reply.kind == "table" else _loads(reply.data)
        if reply.ok:
            return value
        raise host_error(*value)


def _check_parts(name: str, data: bytes, parts: Parts) -> None:
    """Raise ValueError if the arguments of a call exceed the limits of the protocol."""
    sizes = [len(part.data) for _, raw in parts for part in each_part(raw)]
    total = len(data) + sum(sizes)
    if total > MAX_BLOB:
        raise ValueError(
            f"the arguments of {name}() are {total:,} bytes; the limit is {MAX_BLOB:,}"
        )
    count = sum(len(raw) if isinstance(raw, tuple) else 1 for _, raw in parts)
    if count > MAX_PARTS:
        raise ValueError(
            f"the arguments of {name}() are {count:,} texts; the limit is {MAX_PARTS:,}"
        )
