"""Describe public objects in one line each, equal on every supported version of Python."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, ForwardRef

from pydantic import BaseModel

OURS = ("repl_sandbox", "repl_env", "repl_server")
# Methods that Python calls by syntax. A user relies on these although their names begin with "_".
SYNTAX = ("__call__", "__enter__", "__aenter__", "__iter__", "__aiter__", "__len__", "__getitem__")

# Characters of a default that a signature shows; prompts and templates are longer.
LONGEST_DEFAULT = 80


def described(value: object) -> str:
    """Return the kind and the signature of a module's name: "class (x: int)", "def () -> int"."""
    if inspect.isclass(value):
        return f"class {_constructor(value)}".rstrip()
    if inspect.isroutine(value):
        return _function(value)
    return f"constant {type(value).__name__}"


def members(cls: type) -> dict[str, str]:
    """Return the description of each public attribute that `cls` has from this project's code."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in OURS:
            for name, text in _own_members(base):
                found.setdefault(name, text)
    for name in _constructor_fields(cls):  # the constructor's signature shows them
        if found.get(name, "").startswith("attribute"):
            del found[name]
    return dict(sorted(found.items()))


def _own_members(cls: type) -> Iterator[tuple[str, str]]:
    annotations = inspect.get_annotations(cls)
    for name, value in vars(cls).items():
        if _is_public(name) and (text := _member(value)):
            yield name, text
    for name in {**annotations, **dict.fromkeys(_assigned(cls))}:
        if _is_public(name):
            yield name, f"attribute {_annotation(annotations.get(name, ''))}".rstrip()


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in SYNTAX


def _member(value: object) -> str:
    match value:
        case property(fget=FunctionType() as get) | cached_property(func=FunctionType() as get):
            returned = inspect.get_annotations(get).get("return", "")
            return f"property {_annotation(returned)}".rstrip()
        case staticmethod() | classmethod():
            return f"{type(value).__name__} {_function(value.__func__)}"
        case FunctionType():
            return _function(value)
    return ""


def _function(function: Any) -> str:
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"{word} {_signature(inspect.signature(function))}"


def _constructor(cls: type) -> str:
    if issubclass(cls, BaseModel):
        return _signature(_model_signature(cls))
    if not _builds_itself(cls):
        return ""
    return _signature(inspect.signature(cls).replace(return_annotation=inspect.Signature.empty))


def _builds_itself(cls: type) -> bool:
    """Whether code of this project, or a dataclass, says how an instance is made."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in OURS]
    makers = [vars(base).get(name) for base in own for name in ("__init__", "__new__")]
    functions = [getattr(maker, "__func__", maker) for maker in makers if maker is not None]
    return any(function.__module__ != "typing" for function in functions)  # that of a Protocol


def _model_signature(model: type[BaseModel]) -> inspect.Signature:
    """Return the constructor's signature with the annotations as they are written."""
    written: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        written |= inspect.get_annotations(base)
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    defaults = {
        name: empty if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
    }
    return inspect.Signature(
        inspect.Parameter(name, keyword, default=default, annotation=written.get(name, empty))
        for name, default in defaults.items()
    )


def _constructor_fields(cls: type) -> list[str]:
    kinds = ("model_fields", "__dataclass_fields__", "_fields")  # pydantic, dataclass, NamedTuple
    return [name for kind in kinds for name in getattr(cls, kind, ())]


def _signature(signature: inspect.Signature) -> str:
    """Return `str(signature)` without quotes around annotations, and with short defaults."""
    parts: list[str] = []
    last = None
    for parameter in signature.parameters.values():
        if last == parameter.POSITIONAL_ONLY != parameter.kind:
            parts.append("/")
        if parameter.kind == parameter.KEYWORD_ONLY and last not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        parts.append(_parameter(parameter))
        last = parameter.kind
    if last == inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    if parts[:1] in (["self"], ["cls"]):
        del parts[: 2 if parts[1:2] == ["/"] else 1]
    returned = _annotation(signature.return_annotation)
    return f"({', '.join(parts)})" + (f" -> {returned}" if returned else "")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else ""
    stars = "**" if parameter.kind == parameter.VAR_KEYWORD else stars
    annotation = _annotation(parameter.annotation)
    text = stars + parameter.name + (f": {annotation}" if annotation else "")
    if parameter.default is parameter.empty:
        return text
    return text + (" = " if annotation else "=") + _default(parameter.default)


def _annotation(annotation: Any) -> str:
    if annotation in (inspect.Signature.empty, ""):
        return ""
    if isinstance(annotation, ForwardRef):  # of a class with `set_module`
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: object) -> str:
    """Return the default as it would be written, "..." for a sentinel or a long text."""
    if isinstance(value, type | FunctionType):
        return str(value.__qualname__)
    if type(value).__module__.partition(".")[0] in OURS:
        return f"{type(value).__name__}()" if _is_plain(value) else "..."
    text = repr(value)
    return "..." if text.startswith("<") or len(text) > LONGEST_DEFAULT else text


def _is_plain(value: object) -> bool:
    """Whether `value` equals the instance that its class makes without arguments."""
    return type(value).__eq__ is not object.__eq__ and value == type(value)()


def _assigned(cls: type) -> list[str]:
    """Return the names that methods of `cls` assign as `self.name = ...`."""
    functions = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    files = {function.__code__.co_filename for function in functions}
    return [name for file in sorted(files) for name in _assigned_in(file).get(cls.__name__, ())]


@cache
def _assigned_in(file: str) -> dict[str, list[str]]:
    if not Path(file).is_file():  # "<string>", where dataclasses write methods
        return {}
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        cls.name: [
            node.attr
            for node in ast.walk(cls)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        ]
        for cls in classes
    }
