"""`HostFunction`: a function of the host, and how it looks to the code of a session."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

from ...protocol.function_schema import Signature
from ...protocol.values.variable_names import check_name
from .signatures import of_text, signature_of

Face: TypeAlias = Literal["plain", "text", "texts", "handle"]

FACES: frozenset[str] = frozenset(get_args(Face))
# What a handle calls; `wait` is what `as_completed` is made of, and may be left out.
_METHODS = frozenset({"result", "done", "cancel"})
_OPTIONAL = frozenset({"wait"})
# Characters; a name travels with each call.
_LONGEST_NAME = 60
_LONGEST_SIGNATURE = 2_000


@dataclass(frozen=True)
class HostFunction:
    """A function for `Sandbox.session(host=)` that is more than JSON in and JSON out.

    `face`: what code in the session gets for what the function returns.

    - "plain": the JSON itself.
    - "text": for `{"text", "ok", "error", "usage", "truncated"}`, of which all but the first may be
      left out, and perhaps "value": a `Text`, a str with these as attributes.
    - "texts": for a list of such a list of `Text`.
    - "handle": for `{"id": int | str}` a `Handle` with `result(timeout=None)`, `done()`,
      `cancel()`. They call `methods`: `result(id, timeout)` returns what "text" takes, or None if
      it is not ready within that many seconds, which is a TimeoutError in the session; `done(id)`
      and `cancel(id)` return a bool. With `wait(ids, timeout)`, which returns the ids that are
      done, the function has `as_completed(handles, timeout=None)`. An id comes from the session,
      which may make one up: whose it is, is for the methods to know.

    `raw`: parameters that may be a str or bytes, or a list of such or None, which then travel as
    they are and not as JSON, all arguments of a call up to 64 MiB; by position only where it is
    known what the function takes. `signature` says that in place of the function's own, as
    "(prompt, model=None, *, context=None)", with literals for defaults, which are not sent: `help`
    shows it, and calls are checked by it before they leave the session.
    `raises`: names of exception classes of the host that are classes of the session as well, each
    under its name and a `HostCallError`. All others are `HostCallError` and the nearest built-in
    class that they derive from.

    Raises:
        TypeError, ValueError: naming the field.
    """

    function: Callable[..., Any]
    face: Face = field(default="plain", kw_only=True)
    raw: Iterable[str] = field(default=(), kw_only=True)
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict, kw_only=True)
    signature: str | None = field(default=None, kw_only=True)
    raises: Iterable[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, not {type(self.function).__name__}")
        if self.face not in FACES:
            raise ValueError(f"face must be one of {', '.join(sorted(FACES))}, not {self.face!r}")
        for name in ("raw", "raises"):
            object.__setattr__(self, name, _names(getattr(self, name), name))
        for name in self.raises:
            if hasattr(builtins, name):
                raise ValueError(f"raises: {name!r} is a name of Python's own")
        self._check_methods()
        self._check_signature()

    def _check_methods(self) -> None:
        if not isinstance(self.methods, Mapping):
            raise TypeError(f"methods must be a dict, not {type(self.methods).__name__}")
        for name, method in self.methods.items():
            if not callable(method):
                raise TypeError(f"methods[{name!r}] must be callable, not {type(method).__name__}")
        given, needed = set(self.methods), _METHODS if self.face == "handle" else frozenset()
        if not needed <= given <= (needed and needed | _OPTIONAL):
            raise ValueError(
                f"methods of face {self.face!r} must be {sorted(needed) or 'none'}, "
                f"not {sorted(given)}"
            )

    def _check_signature(self) -> None:
        if self.signature is None:
            return
        parameters = _parameters(self.signature)
        names = {each.arg for each in _named(parameters)}
        for name in self.raw:
            if name not in names and parameters.kwarg is None:
                raise ValueError(f"raw: {name!r} is no parameter of {self.signature}")

    @property
    def parameters(self) -> Signature | None:
        """The parameters that the session is shown: `signature`'s, or else the function's."""
        if self.signature is None:
            return signature_of(self.function)
        return _shown(self.signature)

    def places(self, parameters: Signature | None) -> frozenset[int | str]:
        """Where in a call raw arguments may be: their names, and their positions."""
        raw = frozenset(self.raw)
        names = () if parameters is None or not parameters.checked else parameters.by_position
        return raw | {place for place, name in enumerate(names) if name in raw}


def _names(names: object, name: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{name} must be a list of names, not {type(names).__name__}")
    checked: list[str] = []
    for each in names:
        checked.append(check_offered(each, name))
        if len(each) > _LONGEST_NAME:
            raise ValueError(f"{name}: {each!r} is longer than {_LONGEST_NAME} characters")
    return tuple(dict.fromkeys(checked))


def check_offered(name: object, argument: str) -> str:
    """`name` if the host may offer something by it; else TypeError or ValueError for `argument`."""
    checked = check_name(name, argument)
    if checked.startswith("_"):  # the session keeps these for functions of its own
        raise ValueError(f"{argument}: {name!r} must not begin with an underscore")
    return checked


def _named(parameters: ast.arguments) -> list[ast.arg]:
    return [*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs]


def _parameters(signature: object) -> ast.arguments:
    """The parameters that a signature names; TypeError, ValueError if it is none."""
    if not isinstance(signature, str):
        raise TypeError(f"signature must be a str, not {type(signature).__name__}")
    return _parsed(signature)


# Each session is offered the same functions, and to parse seven signatures takes a tenth of the
# time that a child run has on the host.
@lru_cache(maxsize=64)
def _parsed(signature: str) -> ast.arguments:
    try:
        (statement,) = ast.parse(f"def f{signature}: pass").body
        compile(f"def f{signature}: pass", "", "exec")  # a name that is there twice
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
            f"signature: {signature!r:.200} is not parameters in parentheses with literals as "
            "defaults, as '(prompt, model=None, *, context=None)'"
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
