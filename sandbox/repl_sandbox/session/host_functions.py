"""`HostFunction`: a function of the host, its signature, and its calls as code sends them."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType, GeneratorType
from typing import Any, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

from ..display import set_module
from ..errors import RemoteProtocolError
from ..protocol.frames import MAX_BLOB
from ..protocol.messages import (
    HIDDEN,
    KEYWORD_ONLY,
    POSITIONAL_ONLY,
    POSITIONAL_OR_KEYWORD,
    VAR_KEYWORD,
    VAR_POSITIONAL,
    Default,
    FunctionSchema,
    HostCall,
    HostReply,
    Parameter,
    Signature,
)
from ..protocol.values import (
    Place,
    Raw,
    check_name,
    dump_json,
    each_part,
    elements,
    parse_arguments,
    read_text,
)
from ..tables import Table

# Arguments and replies of host calls: from the bytes of a message to Python values, and back.

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
        table = Table.of(value)
        data = dump_json(value) if table is None else table.data
    except (TypeError, ValueError) as error:
        kind = "ValueError" if isinstance(error, ValueError) else "TypeError"
        return refusal(call.call, kind, f"{call.name} returned what JSON cannot carry: {error}")
    if len(data) > MAX_BLOB:
        return refusal(call.call, "ValueError", f"{call.name} returned {len(data):,} bytes")
    return HostReply(call.call, True, data, "json" if table is None else "table")


# `CallReplies`: replies on their way from the threads that ran host functions to the driver.


class CallReplies:
    """The replies of finished calls, and a descriptor that is readable while there are any.

    A child that the host forks during a cell shares the descriptor, which wakes its parent, and may
    have a copy of the lock that nobody will release: in the child this takes no reply.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._done: deque[tuple[int, HostReply]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, cell: int, reply: HostReply) -> None:
        """Add a reply for cell number `cell`; called by the thread that ran the function."""
        with self._lock:
            if not self._closed:
                self._done.append((cell, reply))
                os.eventfd_write(self.wake_fd, 1)

    def take(self) -> list[tuple[int, HostReply]]:
        """Return the replies since the last call, each with its cell."""
        if os.getpid() != self._pid:
            return []
        with self._lock:
            try:
                os.eventfd_read(self.wake_fd)
            except BlockingIOError:
                return []
            replies = list(self._done)
            self._done.clear()
            return replies

    def close(self) -> None:
        """Accept no more replies."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.wake_fd)


# The parameters of a host function, as a session may know them.
#
# An untrusted session must not see a default that may be a key, a name or an address of the
# host's: numbers, truth values, None and empty containers are sent, no texts, and none that a
# `functools.partial` has bound. A signature in text form is for sessions, and is sent as it is.

_MAX_ELEMENTS = 8
_LONGEST_ANNOTATION = 200
_MAX_PARAMETERS = 100
_LISTS = (tuple, list, set, frozenset)
# From 3.14 on annotations are evaluated when they are read, and may name what only a type checker
# imports.
_OPTIONS: dict[str, Any] = {}
if sys.version_info >= (3, 14):
    from annotationlib import Format

    _OPTIONS["annotation_format"] = Format.FORWARDREF


# Sessions usually have the same functions, and inspecting six takes 0.2 ms. For plain functions
# alone: comparing another object can run code of its own.
_known: WeakKeyDictionary[FunctionType, Signature | None] = WeakKeyDictionary()


def signature_of(function: Callable[..., Any]) -> Signature | None:
    """Return the parameters of `function`; None if they cannot be inspected."""
    if type(function) is not FunctionType:
        return _read(function)
    if function not in _known:
        _known[function] = _read(function)
    return _known[function]


def _read(function: Callable[..., Any]) -> Signature | None:
    try:
        described = inspect.signature(function, **_OPTIONS)
        if len(described.parameters) > _MAX_PARAMETERS:
            return None
        bound = _bound(function)
        rows = tuple(_parameter(each, bound) for each in described.parameters.values())
        returns = _annotation(described.return_annotation)
    # Boundary: the function may be any object of the caller's, with attributes that raise anything.
    except Exception:  # noqa: BLE001
        return None
    return Signature(rows, returns, _is_own(function, described))


def _is_own(function: Any, described: inspect.Signature) -> bool:
    """Return whether the signature is `function`'s own; a wrapper may take other arguments."""
    try:
        own = inspect.signature(function, follow_wrapped=False, **_OPTIONS)
    except ValueError:  # a C function, such as functools.cache returns
        return False
    return own == described and not hasattr(function, "__signature__")


def of_text(parameters: ast.arguments) -> Signature:
    """Return the parameters of a signature in text form, with literals as defaults."""
    positional = [*parameters.posonlyargs, *parameters.args]
    left_out: list[ast.expr | None] = [None] * (len(positional) - len(parameters.defaults))
    rows = [
        Parameter(
            each.arg,
            POSITIONAL_ONLY if each in parameters.posonlyargs else POSITIONAL_OR_KEYWORD,
            _literal(default),
        )
        for each, default in zip(positional, [*left_out, *parameters.defaults], strict=True)
    ]
    if parameters.vararg is not None:
        rows.append(Parameter(parameters.vararg.arg, VAR_POSITIONAL))
    rows += [
        Parameter(each.arg, KEYWORD_ONLY, _literal(default))
        for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    ]
    if parameters.kwarg is not None:
        rows.append(Parameter(parameters.kwarg.arg, VAR_KEYWORD))
    return Signature(tuple(rows))


def _literal(default: ast.expr | None) -> Default | None:
    if default is None:
        return None
    value = ast.literal_eval(default)
    return Default(value) if _is_scalar(value) else Default(text=ast.unparse(default))


def _bound(function: Any) -> frozenset[str]:
    """The keywords that partial objects have bound."""
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return frozenset(names)


def _parameter(parameter: inspect.Parameter, bound: frozenset[str]) -> Parameter:
    default = None
    if parameter.default is not inspect.Parameter.empty:
        hidden = parameter.name in bound or not _is_literal(parameter.default)
        default = Default(text=HIDDEN) if hidden else _literal_text(parameter.default)
    return Parameter(
        parameter.name, int(parameter.kind), default, _annotation(parameter.annotation)
    )


def _is_literal(value: Any) -> bool:
    if type(value) in _LISTS:
        return len(value) <= _MAX_ELEMENTS and all(map(_is_literal, value))
    if type(value) is str:
        return not value
    return (
        value == {} if type(value) is dict else value is None or type(value) in (bool, int, float)
    )


def _literal_text(value: Any) -> Default:
    return Default(value) if _is_scalar(value) else Default(text=repr(value))


def _is_scalar(value: Any) -> bool:
    """Return whether the value is a JSON scalar."""
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def _annotation(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    forward = getattr(annotation, "__forward_arg__", annotation)
    text = forward if isinstance(forward, str) else inspect.formatannotation(annotation)
    return text if len(text) <= _LONGEST_ANNOTATION else None


# `HostFunction`: a function of the host, and how code in a session calls it.

Returns: TypeAlias = Literal["plain", "text", "texts", "handle"]

RETURN_TYPES: frozenset[str] = frozenset(get_args(Returns))
# The methods of a handle. Without the optional `wait` there is no `as_completed`.
_METHODS = frozenset({"result", "done", "cancel"})
_OPTIONAL = frozenset({"wait"})
# Characters; each call carries its name.
_LONGEST_NAME = 60
_LONGEST_SIGNATURE = 2_000


@set_module("repl_sandbox")
@dataclass(frozen=True)
class HostFunction:
    """A function for `Sandbox.session(host=)` that takes or returns more than JSON.

    `returns`: the type that code in the session gets for the function's result.

    - "plain": the JSON itself.
    - "text": a `Text`, a str with attributes, for `{"text", "ok", "error", "usage", "truncated",
      "value"}`; all keys but the first may be left out.
    - "texts": a list of `Text`, for a list of such dicts.
    - "handle": for `{"id": int | str}` a `Handle` with `result(timeout=None)`, `done()`,
      `cancel()`. They call `methods`: `result(id, timeout)` returns such a dict, or None if
      the result is not ready within that many seconds, which raises TimeoutError in the session;
      `done(id)` and `cancel(id)` return a bool. With `wait(ids, timeout)`, which returns the ids
      that are done, the function has `as_completed(handles, timeout=None)`. Code in the session can
      make up an id: the methods must check that the id belongs to the session.

    `raw`: parameters whose str or bytes (also None, or a list of these) are sent as they are and
    not as JSON, up to 64 MiB for all arguments of a call. A raw argument may be passed by position
    only if the function's parameters are known.
    `signature`: replaces the function's own, as "(prompt, model=None, *, context=None)", with
    literals as defaults, which are not sent. `help` shows it, and the session checks calls against
    it before it sends them.
    `raises`: names of exception classes of the host that exist in the session as well, as
    subclasses of `HostCallError`. Every other exception arrives as `HostCallError` and the nearest
    built-in class that it derives from.

    Raises:
        TypeError, ValueError: naming the field.
    """

    function: Callable[..., Any]
    returns: Returns = field(default="plain", kw_only=True)
    raw: Iterable[str] = field(default=(), kw_only=True)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict, kw_only=True)
    signature: str | None = field(default=None, kw_only=True)
    raises: Iterable[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, not {type(self.function).__name__}")
        if self.returns not in RETURN_TYPES:
            known = ", ".join(sorted(RETURN_TYPES))
            raise ValueError(f"returns must be one of {known}, not {self.returns!r}")
        for name in ("raw", "raises"):
            object.__setattr__(self, name, _names(getattr(self, name), name))
        for name in self.raises:
            if hasattr(builtins, name):
                raise ValueError(f"raises: {name!r} is the name of a built-in of Python")
        self._check_methods()
        self._check_signature()

    def _check_methods(self) -> None:
        if not isinstance(self.methods, Mapping):
            raise TypeError(f"methods must be a dict, not {type(self.methods).__name__}")
        for name, method in self.methods.items():
            if not callable(method):
                raise TypeError(f"methods[{name!r}] must be callable, not {type(method).__name__}")
        names, needed = set(self.methods), _METHODS if self.returns == "handle" else frozenset()
        if not needed <= names <= (needed and needed | _OPTIONAL):
            raise ValueError(
                f"methods of a function that returns {self.returns!r} must be "
                f"{sorted(needed) or 'none'}, "
                f"not {sorted(names)}"
            )

    def _check_signature(self) -> None:
        if self.signature is None:
            return
        parameters = _parameters(self.signature)
        names = {each.arg for each in _named(parameters)}
        for name in self.raw:
            if name not in names and parameters.kwarg is None:
                raise ValueError(f"raw: {name!r} is not a parameter of {self.signature}")

    @property
    def parameters(self) -> Signature | None:
        """The parameters that the session shows: those of `signature`, else of the function."""
        if self.signature is None:
            return signature_of(self.function)
        return _shown(self.signature)

    def places(self, parameters: Signature | None) -> frozenset[int | str]:
        """The places of a call that may hold raw arguments: names and positions."""
        raw = frozenset(self.raw)
        names = () if parameters is None or not parameters.checked else parameters.by_position
        return raw | {place for place, name in enumerate(names) if name in raw}


def _names(names: object, name: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{name} must be a list of names, not {type(names).__name__}")
    checked: list[str] = []
    for each in names:
        checked.append(check_function_name(each, name))
        if len(each) > _LONGEST_NAME:
            raise ValueError(f"{name}: {each!r} is longer than {_LONGEST_NAME} characters")
    return tuple(dict.fromkeys(checked))


def check_function_name(name: object, argument: str) -> str:
    """Return `name` if a host function may have it; else raise TypeError or ValueError."""
    checked = check_name(name, argument)
    if checked.startswith("_"):  # reserved for functions of the session itself
        raise ValueError(f"{argument}: {name!r} must not begin with an underscore")
    return checked


def _named(parameters: ast.arguments) -> list[ast.arg]:
    return [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]


def _parameters(signature: object) -> ast.arguments:
    """Parse a signature; raise TypeError or ValueError if it is not one."""
    if not isinstance(signature, str):
        raise TypeError(f"signature must be a str, not {type(signature).__name__}")
    return _parsed(signature)


# Sessions usually have the same functions, and parsing seven signatures takes a tenth of the host's
# time for a child run.
@lru_cache(maxsize=64)
def _parsed(signature: str) -> ast.arguments:
    try:
        (statement,) = ast.parse(f"def f{signature}: pass").body
        compile(f"def f{signature}: pass", "", "exec")  # refuses a name that occurs twice
        if not isinstance(statement, ast.FunctionDef) or not signature.startswith("("):
            raise ValueError("not one function")
        (body,) = statement.body
        if not isinstance(body, ast.Pass) or len(signature) > _LONGEST_SIGNATURE:
            raise ValueError("more than a signature")
        parameters = statement.args
        for default in (*parameters.defaults, *parameters.kw_defaults):
            if default is not None:
                ast.literal_eval(default)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"signature: {signature!r:.200} must be parameters in parentheses with literals as "
            "defaults, such as '(prompt, model=None, *, context=None)'"
        ) from None
    if any(each.annotation for each in _all(parameters)) or statement.returns is not None:
        raise ValueError("signature: annotations are not shown; write them into the docstring")
    return parameters


@lru_cache(maxsize=64)
def _shown(signature: str) -> Signature:
    return of_text(_parsed(signature))


def _all(parameters: ast.arguments) -> list[ast.arg]:
    more = [each for each in (parameters.vararg, parameters.kwarg) if each is not None]
    return [*_named(parameters), *more]


# `FunctionRegistry`: the host functions of one session, by name.

HostCallable: TypeAlias = Callable[..., Any]

# Characters of a docstring, for help(f) in the session; the rest is cut.
_MAX_DOC = 2000
_NOWHERE: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class FunctionRegistry:
    """The host functions of one session.

    Attributes:
        functions: By the name in a call; the methods of handles as "function.method".
        rows: The schemas that the session receives.
        names: The names that the session then has in its namespace.
    """

    functions: dict[str, HostCallable] = field(default_factory=dict)
    rows: tuple[FunctionSchema, ...] = ()
    names: frozenset[str] = frozenset()
    _places: dict[str, frozenset[Place]] = field(default_factory=dict)

    def places(self, name: str) -> frozenset[Place]:
        """The places of a call of `name` that may hold raw arguments."""
        return self._places.get(name, _NOWHERE)

    def differ(self, others: FunctionRegistry) -> bool:
        """Return whether code written for these functions would not work with `others`."""
        return {_without_doc(row) for row in self.rows} != {
            _without_doc(row) for row in others.rows
        }


def _without_doc(row: FunctionSchema) -> tuple[Any, ...]:
    # Parameters matter only where an argument travels by position.
    positions = row.signature.by_position if row.raw and row.signature is not None else ()
    return row.name, row.returns, positions, row.raw, frozenset(row.methods), row.raises


def check(host: Mapping[str, HostCallable | HostFunction] | None) -> FunctionRegistry:
    """Return the functions of `host`; raise TypeError or ValueError naming the faulty entry."""
    if host is None:
        return FunctionRegistry()
    if not isinstance(host, Mapping):
        raise TypeError(f"host must be a dict of functions, not {type(host).__name__}")
    functions: dict[str, HostCallable] = {}
    rows, errors, places = [], set(), {}
    for name, function in host.items():
        if not isinstance(name, str) or not (
            callable(function) or isinstance(function, HostFunction)
        ):
            raise TypeError(f"host[{name!r}] must be a function, and its name a str")
        check_function_name(name, "host")
        described = function if isinstance(function, HostFunction) else None
        functions[name] = function if described is None else described.function  # type: ignore[assignment]
        row = _row(name, functions[name], described)
        rows.append(row)
        if described is not None:
            functions |= {f"{name}.{each}": method for each, method in described.methods.items()}
            errors |= set(described.raises)
            if described.raw:
                places[name] = described.places(row.signature)
    if clash := errors & functions.keys():
        raise ValueError(f"host: {sorted(clash)} are names of functions and of raises= as well")
    return FunctionRegistry(functions, tuple(rows), frozenset(host) | errors, places)


def _row(name: str, function: HostCallable, described: HostFunction | None) -> FunctionSchema:
    doc = _doc(function)[:_MAX_DOC]
    if described is None:
        return FunctionSchema(name, doc, signature=signature_of(function))
    return FunctionSchema(
        name,
        doc,
        described.returns,
        described.parameters,
        tuple(described.raw),
        tuple(described.methods),
        tuple(described.raises),
    )


def _doc(function: HostCallable) -> str:
    """The docstring of `function`; for a partial or an object, that of the function it calls."""
    while isinstance(function, functools.partial) and function.__doc__ == functools.partial.__doc__:
        function = function.func
    call = type(function).__call__
    calls = inspect.getdoc(call) if inspect.isfunction(call) else None
    return inspect.getdoc(function) or calls or ""
