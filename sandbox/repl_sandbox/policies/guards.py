"""Guards that guarded code calls to read, write and import, and the builtins of such code.

RestrictedPython's transformer writes calls of `_getattr_`, `_getitem_`, `_write_` and others into a
cell's syntax tree; no cell can write these names itself. Loaded by "restricted" only.
"""

from __future__ import annotations

import builtins
import operator
from abc import ABCMeta
from collections import deque
from collections.abc import Callable
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, ForwardRef

from RestrictedPython.Guards import (
    guarded_iter_unpack_sequence,
    guarded_unpack_sequence,
    safe_builtins,
    safer_getattr_raise,
)
from RestrictedPython.transformer import INSPECT_ATTRIBUTES, IOPERATOR_TO_STR

from ..errors import HostCallError, PolicyError
from .lint import listed
from .module_proxies import ModuleProxies, ModuleProxy
from .names import ITERATION, OWN, REFUSED, VALUES, is_private
from .replacement_functions import GuardedFormatter

# Never given to a cell, whichever object holds them. A ForwardRef evaluates text.
_INSIDES = frozenset({ModuleType, FrameType, CodeType, CellType, ForwardRef})
# Classes for which `type(x)` would create functions, code or modules.
_MAKERS = _INSIDES | {FunctionType, TracebackType, ModuleProxy}
_print = print
_FORMATS = ("format", "format_map")
# Bases of a cell's own classes without private names of their own; SyntaxError has some since
# CPython 3.14. In a class with any
# other base, a cell can reach no private name.
_ROOTS = frozenset(
    each
    for each in (object, *vars(builtins).values())
    if each is object or (isinstance(each, type) and issubclass(each, BaseException))
    if not any(map(is_private, vars(each)))
)

_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "|=": operator.ior,
    "^=": operator.ixor,
    "&=": operator.iand,
    "//=": operator.ifloordiv,
    "@=": operator.imatmul,
}
assert set(_IN_PLACE) == set(IOPERATOR_TO_STR.values())


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def get_attribute(owner: Any, name: str, *default: Any) -> Any:
    """Return `owner.name`; also the `getattr` of cells.

    Raises:
        PolicyError: the name belongs to the internals of Python.
        AttributeError: there is no such attribute, and no default.
    """
    _check_name(owner, name)
    if name in _FORMATS:
        return _formatting(owner, name, default)
    if name in {"__name__", "__init__"}:
        return getattr(owner, name, *default)
    if is_private(name):
        return _outside(getattr(owner, name, *default))
    if type(owner) is ModuleProxy and name not in vars(owner):
        offers = listed([each for each in vars(owner) if each[:1] != "_"])
        raise PolicyError(
            f"{owner.__name__}.{name} is not offered; {owner.__name__} offers {offers}"
        )
    return _outside(safer_getattr_raise(owner, name, *default))  # type: ignore[no-untyped-call]


def get_item(owner: Any, index: Any) -> Any:
    """Return `owner[index]`."""
    return _outside(owner[index])


def has_attribute(owner: Any, name: str) -> bool:
    """`hasattr` of cells; PolicyError for a forbidden name."""
    try:
        get_attribute(owner, name)
    except AttributeError:
        return False
    return True


def _check_name(owner: Any, name: str) -> None:
    if type(name) is not str:
        raise TypeError(f"attribute name must be string, not {type(name).__name__!r}")
    if name == "__name__" or (name == "__init__" and type(owner) is super):
        return
    if is_private(name) and _is_own(owner):
        return
    if name[:1] == "_" or name.endswith("__roles__"):
        raise PolicyError(f"the attribute {name!r} begins with '_'; such names are not allowed")
    inside = name in INSPECT_ATTRIBUTES or (name == "mro" and isinstance(owner, type))
    if inside or (name == "obj" and issubclass(type(owner), AttributeError)):
        raise PolicyError(f"the attribute {name!r} leads to the insides of Python: not allowed")


def _is_own(owner: Any) -> bool:
    """Return whether `owner` is a class that a cell made, or an instance of one."""
    kind = owner if issubclass(type(owner), type) else type(owner)
    own = type(kind) is type and OWN in vars(kind)
    return own and all(each in _ROOTS or OWN in vars(each) for each in kind.__mro__)


def _outside(value: Any) -> Any:
    if type(value) in _INSIDES:
        raise PolicyError(f"a {type(value).__name__} is one of the insides of Python: not allowed")
    return value


_formatter = GuardedFormatter(get_attribute, get_item)


def _formatting(owner: Any, name: str, default: tuple[Any, ...]) -> Any:
    """Return guarded `format` and `format_map`, which otherwise read attributes of any name."""
    found = getattr(owner, name, *default)
    if type(found) is BuiltinMethodType and issubclass(type(found.__self__), str):
        return _format_of(str.__str__(found.__self__), name)
    if type(found) is MethodDescriptorType and found.__objclass__ is str:
        return lambda text, *args, **fields: _format_of(str.__str__(text), name)(*args, **fields)
    return found


def _format_of(text: str, name: str) -> Callable[..., str]:
    if name == "format":
        return lambda *args, **fields: _formatter.vformat(text, args, fields)
    return lambda mapping: _formatter.vformat(text, (), mapping)


# ── writing ───────────────────────────────────────────────────────────────────────────────────


class WriteGuard:
    """Decides which objects may be changed: containers, and objects that cells made."""

    def __init__(self, writable: tuple[type, ...]) -> None:
        self._classes = (dict, list, bytearray, deque, *writable)
        self.builtins: dict[str, object] = {}

    def writable(self, owner: Any) -> Any:
        """Return `owner` if its items and attributes may be set and deleted; else PolicyError."""
        kind = type(owner)
        if issubclass(kind, self._classes) or hasattr(kind, OWN):
            return owner
        if isinstance(owner, type) and hasattr(owner, OWN):
            return owner
        if kind is FunctionType and owner.__builtins__ is self.builtins:
            return owner
        raise PolicyError(f"an object of type {kind.__name__!r} cannot be changed here")

    def own(self, owner: Any) -> Any:
        """Return `owner` if its attributes with a leading underscore may be set and deleted."""
        if not _is_own(owner):
            kind = type(owner).__name__
            raise PolicyError(f"a {kind} is of no class of the cells' own: no names with '_' here")
        return self.writable(owner)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """`setattr` of cells."""
        _check_name(owner, name)
        _check_settable(name)
        setattr(self.writable(owner), name, value)

    def delete_attribute(self, owner: Any, name: str) -> None:
        """`delattr` of cells."""
        _check_name(owner, name)
        _check_settable(name)
        delattr(self.writable(owner), name)

    def in_place_item(self, sign: str, owner: Any, index: Any, value: Any) -> None:
        """Perform `owner[index] += value`."""
        self.writable(owner)[index] = in_place(sign, get_item(owner, index), value)

    def in_place_attribute(self, sign: str, owner: Any, name: str, value: Any) -> None:
        """Perform `owner.name += value`."""
        self.set_attribute(owner, name, in_place(sign, get_attribute(owner, name), value))


def _check_settable(name: str) -> None:
    if name[:1] == "_" and not is_private(name):
        raise PolicyError(f"the attribute {name!r} begins with '_'; such names are not allowed")


def in_place(sign: str, left: Any, right: Any) -> Any:
    """Return the new value for the left side of `left += right` and the like."""
    return _IN_PLACE[sign](left, right)


# ── making and calling ────────────────────────────────────────────────────────────────────────


def make_class(name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
    """Return the class of a class statement."""
    namespace[OWN] = True
    return type(name, bases, namespace)


def kind_of(*values: Any) -> Any:
    """`type` of cells: one argument, and never a class that makes classes, functions or modules."""
    if len(values) != 1:
        raise PolicyError("type() takes one value; a class is made by a class statement")
    kind = type(values[0])
    if issubclass(kind, type):
        return kind_of
    if kind in _MAKERS or type(kind) not in (type, ABCMeta):
        raise PolicyError(f"the type of a {kind.__name__} is not offered")
    return kind


def call(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """Return `function(*args, **keywords)`."""
    return function(*args, **keywords)


def show(
    *values: Any,
    sep: str | None = " ",
    end: str | None = "\n",
    file: Any = None,
    flush: bool = False,
) -> None:
    """`print` of cells: to standard output only."""
    if file is not None:
        raise PolicyError("print() writes to standard output only: file= is not offered")
    _print(*values, sep=sep, end=end, flush=flush)


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def refused(*args: Any, **keywords: Any) -> Any:
        raise PolicyError(f"{name}() is not offered: {reason}")

    refused.__name__ = refused.__qualname__ = name
    return refused


def guarded_builtins(proxies: ModuleProxies) -> dict[str, object]:
    """Return a new dictionary of builtins for guarded code, with the guards."""
    original = vars(builtins)
    errors = {
        k: v for k, v in original.items() if isinstance(v, type) and issubclass(v, BaseException)
    }
    writing = WriteGuard(proxies.writable)
    found: dict[str, object] = {
        **safe_builtins,
        **errors,
        **{name: original[name] for name in (ITERATION + " " + VALUES).split()},
        **{name: _refusal(name, reason) for name, reason in REFUSED.items()},
        "HostCallError": HostCallError,
        "PolicyError": PolicyError,
        "print": show,
        "type": kind_of,
        "getattr": get_attribute,
        "hasattr": has_attribute,
        "setattr": writing.set_attribute,
        "delattr": writing.delete_attribute,
        "__import__": proxies.import_module,
        "__metaclass__": make_class,
        "_getattr_": get_attribute,
        "_getitem_": get_item,
        "_getiter_": iter,
        "_iter_unpack_sequence_": guarded_iter_unpack_sequence,
        "_unpack_sequence_": guarded_unpack_sequence,
        "_write_": writing.writable,
        "_own_": writing.own,
        "_inplacevar_": in_place,
        "_inplaceitem_": writing.in_place_item,
        "_inplaceattribute_": writing.in_place_attribute,
        "_apply_": call,
        "_kind_": kind_of,
    }
    writing.builtins = found
    return found
