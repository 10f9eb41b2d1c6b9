"""Stand-ins for host functions, for `inspect.signature`, `help` and checks of calls.

A stand-in has the parameters of the host function and does nothing. It is made from the code object
of an empty function, without compiling text.
"""

from __future__ import annotations

import builtins
from types import FunctionType
from typing import Any

from ...protocol.function_schema import FunctionSchema, Parameter, Signature

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
    call.__module__ = "host"
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
