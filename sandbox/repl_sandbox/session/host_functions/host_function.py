"""`HostFunction`: a function of the host, and how code in a session calls it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

from ...protocol.function_schema import Signature
from ...protocol.values.variable_names import check_name
from ...set_module import set_module
from .signatures import of_text, signature_of

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
