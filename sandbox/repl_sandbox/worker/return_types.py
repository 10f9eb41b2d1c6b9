"""Stubs of host functions with special return types (`repl_sandbox.HostFunction`).

Loaded in a session when the host registers such a function. All objects here belong to the session:
code may replace any of them, and then deceives only itself. The host keeps the true texts, handles
and costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from ..errors import HostCallError
from ..protocol.messages import FunctionSchema
from ..protocol.values import MAX_PARTS, Place, Raw, RawArgument
from .host_stubs import HostCallClient, add_signature, stand_in
from .namespace import loaded_class, plain, read, type_name
from .preview import show

_monotonic = time.monotonic


# ── texts ─────────────────────────────────────────────────────────────────────────────────────


class Text(str):
    """Text from the host, with facts about it.

    A str in all ways; methods of str return a plain str. `ok`: whether the request succeeded;
    `error`: the reason for a failure, or None; `usage`: the cost, or None; `truncated`: whether a
    limit has cut the text; `value`: the value that the text stands for where it is more than text,
    or None.
    """

    __slots__ = ("error", "ok", "truncated", "usage", "value")

    ok: bool
    error: str | None
    usage: dict[str, Any] | None
    truncated: bool
    value: Any

    def __new__(
        cls,
        text: str = "",
        ok: bool = True,
        error: str | None = None,
        usage: dict[str, Any] | None = None,
        truncated: bool = False,
        value: Any = None,
    ) -> Text:
        """Make a text from its parts."""
        self = str.__new__(cls, text)
        self.ok, self.error, self.usage = ok, error, usage
        self.truncated, self.value = truncated, value
        return self

    def __reduce__(self) -> tuple[type[Text], tuple[Any, ...]]:
        return Text, (
            str(self),
            self.ok,
            self.error,
            self.usage,
            self.truncated,
            self.value,
        )


show(Text, str)


def _text(name: str, value: Any) -> Text:
    if type(value) is not dict or type(value.get("text")) is not str:
        raise HostCallError("TypeError", f"{name} returned no text, but {type_name(value)}")
    found = {key: content for key, content in value.items() if key in _FIELDS}
    return Text(**found)


_FIELDS = frozenset(("text", *Text.__slots__))


def _texts(name: str, value: Any) -> list[Text]:
    if type(value) is not list:
        raise HostCallError("TypeError", f"{name} returned no list, but {type_name(value)}")
    return [_text(name, each) for each in value]


# ── handles ───────────────────────────────────────────────────────────────────────────────────


class Handle:
    """An operation in progress on the host, by its id; made by the function that began it."""

    __slots__ = ("__weakref__", "_function", "_result", "_state", "id")

    def __init__(
        self,
        function: Any,
        id: int | str,
        result: Text | None = None,
        state: str = "pending",
    ) -> None:
        self.id = id
        self._function = function
        self._result = result
        self._state = state

    def result(self, timeout: float | None = None) -> Text:
        """Return the result, after at most `timeout` seconds; None waits without limit.

        Raises:
            TimeoutError: there is no result yet.
        """
        if self._result is None:
            value = self._function.methods["result"](self.id, timeout)
            if value is None:
                raise TimeoutError(f"{self!r} has no result yet")
            self._result = _text(f"{self._function.__name__}.result", value)
            self._state = "done"
        return self._result

    def done(self) -> bool:
        """Return whether `result` would return at once."""
        if self._result is None and self._function.methods["done"](self.id):
            self._state = "done"
            return True
        return self._result is not None

    def cancel(self) -> bool:
        """Ask the host to cancel the operation; return whether that had an effect."""
        cancelled = bool(self._function.methods["cancel"](self.id))
        if cancelled:
            self._state = "cancelled"
        return cancelled

    def __repr__(self) -> str:
        return _show_handle(self)

    def __reduce__(self) -> tuple[Callable[..., Handle], tuple[Any, ...]]:
        return restored_handle, (self._function.__name__, self.id, self._result, self._state)


# Functions of this session that make handles, by name.
_makers: dict[str, Any] = {}


def restored_handle(name: str, id: int | str, result: Text | None, state: str) -> Handle:
    """Return a handle from a pickle, of the function that has the same name in this session.

    Without such a function, the handle keeps a stored result, and raises HostCallError otherwise.
    """
    return Handle(_makers.get(name) or _gone(name), id, result, state)


def _gone(name: str) -> Any:
    def refuse(*args: Any) -> None:
        raise HostCallError("NameError", f"this session offers no {name!r}")

    maker: Any = lambda *args: refuse()  # noqa: E731 - it is named below
    maker.__name__ = name
    maker.methods = dict.fromkeys(("result", "done", "cancel"), refuse)
    return maker


def _show_handle(handle: Handle) -> str:
    """Return the display of a handle without running code that may be in its class."""
    function, number, state = (read(handle, name) for name in ("_function", "id", "_state"))
    name = function.__name__ if type(function) is FunctionType else "handle"
    shown = number if type(number) is int else plain(number)
    return f"<{plain(name)} {shown}: {plain(state)}>"


show(Handle, _show_handle)


def _as_completed(wait: Callable[..., Any]) -> Callable[..., Iterator[Handle]]:
    def as_completed(handles: Iterable[Handle], timeout: float | None = None) -> Iterator[Handle]:
        """Yield handles in the order of their completion.

        Raises:
            TimeoutError: some are not done after `timeout` seconds.
        """
        waiting = {handle.id: handle for handle in handles}
        count, deadline = len(waiting), None if timeout is None else _monotonic() + timeout
        while waiting:
            remaining = None if deadline is None else max(0.0, deadline - _monotonic())
            done = [number for number in wait(list(waiting), remaining) or () if number in waiting]
            if not done:
                raise TimeoutError(f"{len(waiting)} of {count} have no result yet")
            for number in done:
                yield waiting.pop(number)

    return as_completed


# ── functions ─────────────────────────────────────────────────────────────────────────────────


class ReturnTypes:
    """Makes the stubs of one session. `errors`: the classes of their exceptions, by name."""

    def __init__(self, calls: HostCallClient) -> None:
        self._calls = calls
        self.errors: dict[str, type[HostCallError]] = {}

    def function(self, schema: FunctionSchema) -> Callable[..., Any]:
        """Return the stub of a host function."""
        name = schema.name
        for error in schema.raises:
            self.errors.setdefault(error, _error_class(error))
        raw, signature = frozenset(schema.raw), schema.signature
        like = None if signature is None else stand_in(name, signature)
        check = like if signature is not None and signature.checked else None
        positions = () if signature is None or check is None else signature.by_position

        def call(*args: Any, **kwargs: Any) -> Any:
            if check is not None:
                check(*args, **kwargs)
            parts: list[tuple[Place, Raw]] = []
            if raw:
                args, kwargs = _take_raw(args, kwargs, raw, positions, parts)
            return convert(self._ask(schema, name, args, kwargs, parts))

        def convert(value: Any) -> Any:
            return _RETURN_TYPES[schema.returns](call, value)

        add_signature(call, schema, like)
        if schema.methods:
            self._add_methods(call, schema)
        return call

    def _add_methods(self, call: Any, schema: FunctionSchema) -> None:
        call.methods = {each: self._method(schema, each) for each in schema.methods}
        _makers[schema.name] = call
        if "wait" in call.methods:
            call.as_completed = _as_completed(call.methods["wait"])

    def _method(self, schema: FunctionSchema, name: str) -> Callable[..., Any]:
        def method(*args: Any) -> Any:
            return self._ask(schema, f"{schema.name}.{name}", args, {}, [])

        method.__name__ = method.__qualname__ = name
        method.__module__ = "host"
        return method

    def _ask(
        self,
        schema: FunctionSchema,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        parts: list[tuple[Place, Raw]],
    ) -> Any:
        try:
            return self._calls.call(name, args, kwargs, tuple(parts))
        except HostCallError as error:
            if error.type not in schema.raises:
                raise
            raised = self.errors[error.type](error.message)  # type: ignore[call-arg]
        raise raised  # raised here, so that the other exception is no context of it


def _handle(call: Any, value: Any) -> Handle:
    identifier = value.get("id") if type(value) is dict else None
    if not isinstance(identifier, (int, str)):
        raise HostCallError("TypeError", f"{call.__name__} returned no id of a handle")
    return Handle(call, identifier)


_RETURN_TYPES: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda call, value: value,
    "text": lambda call, value: _text(call.__name__, value),
    "texts": lambda call, value: _texts(call.__name__, value),
    "handle": _handle,
}


def _error_class(name: str) -> type[HostCallError]:
    """Return a class for the host's exceptions of one class, with the same name."""

    def __init__(self: HostCallError, message: str = "") -> None:  # noqa: N807
        HostCallError.__init__(self, name, message)
        self.args = (message,)  # the base of str() and of copies

    def __reduce__(self: HostCallError) -> tuple[Any, ...]:  # noqa: N807
        return type(self), self.args

    body = {"__init__": __init__, "__reduce__": __reduce__, "__module__": "__main__"}
    body["__doc__"] = f"Raised when a function of the host has raised a {name}."
    return type(name, (HostCallError,), body)


# ── raw arguments ─────────────────────────────────────────────────────────────────────────────


def _take_raw(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: frozenset[str],
    positions: tuple[str, ...],
    parts: list[tuple[Place, Raw]],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with None in place of each raw one; raw ones are added to `parts`."""
    plain_args, plain_kwargs = list(args), dict(kwargs)
    for place, (name, value) in enumerate(zip(positions, args, strict=False)):
        if name in names and (raw := _raw(value)) is not None:
            parts.append((place, raw))
            plain_args[place] = None
    for name, value in kwargs.items():
        if name in names and (raw := _raw(value)) is not None:
            parts.append((name, raw))
            plain_kwargs[name] = None
    return tuple(plain_args), plain_kwargs


def _raw(value: Any) -> Raw | None:
    """Return `value` as raw data; None if it is sent as JSON."""
    series: Any = loaded_class("pandas", "Series")
    if series is not None and isinstance(value, series):
        value = value.tolist()  # texts for a model, which needs no labels
    if isinstance(value, (list, tuple)) and 0 < len(value) <= MAX_PARTS:
        elements = [None if each is None else _part(each) for each in value]
        complete = all(part or each is None for part, each in zip(elements, value, strict=True))
        return tuple(elements) if complete and any(elements) else None
    return _part(value)


def _part(value: Any) -> RawArgument | None:
    if isinstance(value, str):
        return RawArgument("str", str.encode(value, "utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return RawArgument("bytes", bytes(value))
    return None
