"""Pickles of objects made by cells: cloudpickle, but functions of cells keep the session's globals.

cloudpickle gives a restored function a dictionary of its own, with the globals that it used. Here
the function looks them up in the live `__main__`, as before: it sees names that later cells bind,
and these globals need not be picklable. Cells of closures stay shared, and recursion works, because
a function is made with empty cells that are filled afterwards.

The protocol is 3, the last in which each object that may be referred to again carries its number:
records that could not be loaded leave a gap, and do not shift the numbers of later ones.
"""

from __future__ import annotations

import copyreg
import functools
import io
import sys
import typing
from collections.abc import Callable, Mapping
from pickle import PicklingError
from types import CellType, CodeType, FunctionType, WrapperDescriptorType
from typing import Any

import cloudpickle

from .imports import loaded

# Pickles of standard-library objects made by cells that neither pickle nor cloudpickle can save.
#
# Exceptions with their own `__init__`, `singledispatch`, `cached_property`, `ParamSpec`.

_PARAMETERS: tuple[type, ...] = (typing.ParamSpec, typing.TypeVarTuple)
# The code and the attributes that all functions of `functools.singledispatch` have.
_PLAIN: Any = functools.singledispatch(len)
_DISPATCHING, _OWN = _PLAIN.__code__, _PLAIN.__dict__.keys()


def reducer(kind: type, value: Any) -> Callable[[Any], Any] | None:
    """Return the reducer of `value`, whose class is `kind`; None if it is not one of these."""
    if kind is FunctionType:
        return _dispatching if value.__code__ is _DISPATCHING else None
    if kind is functools.cached_property:
        return _cached_property
    if kind is functools.singledispatchmethod:
        return _dispatching_method
    if kind in _PARAMETERS:
        return _parameters if value.__module__ == "__main__" else None
    return _exception if issubclass(kind, BaseException) and _is_of_a_cell(kind) else None


def _is_of_a_cell(kind: Any) -> bool:
    """Return whether an exception has code that pickle would call with other arguments."""
    return (
        type(kind.__init__) is FunctionType
        and kind.__reduce__ is BaseException.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and not copyreg._slotnames(kind)  # type: ignore[attr-defined]
    )


def _exception(error: Any) -> tuple[Any, ...]:
    kind, arguments, *state = error.__reduce__()
    return make_exception, (kind, arguments), *state


def _dispatching(function: Any) -> tuple[Any, ...]:
    more = {name: value for name, value in function.__dict__.items() if name not in _OWN}
    state = dict(function.registry), more
    return make_dispatching, (function.__wrapped__,), state, None, None, fill_dispatching


def _cached_property(cached: Any) -> tuple[Any, ...]:
    """Reduce a cached_property without its lock, which it has before Python 3.12."""
    state = {name: value for name, value in vars(cached).items() if name != "lock"}
    return functools.cached_property, (cached.func,), state


def _dispatching_method(method: Any) -> tuple[Any, ...]:
    """Reduce a singledispatchmethod without its cache, which some Pythons 3.12 and 3.13 have."""
    state = {name: value for name, value in vars(method).items() if name != "_method_cache"}
    return functools.singledispatchmethod, (method.func,), state


def _parameters(parameters: Any) -> tuple[Any, ...]:
    return make_parameters, (type(parameters), parameters.__name__)


# ── what pickles call ─────────────────────────────────────────────────────────────────────────


def make_exception(kind: Any, arguments: tuple[object, ...]) -> BaseException:
    """Return an exception without calling its class's `__init__`, whose arguments are unknown."""
    exception: BaseException = kind.__new__(kind, *arguments)
    inits = (vars(base).get("__init__") for base in kind.__mro__)
    next(init for init in inits if type(init) is WrapperDescriptorType)(exception, *arguments)
    return exception


def make_dispatching(function: Callable[..., Any]) -> Any:
    """Return `function` made generic, without implementations."""
    return functools.singledispatch(function)


def fill_dispatching(function: Any, state: tuple[dict[type, Any], dict[str, Any]]) -> None:
    """Give a new generic function its implementations and attributes."""
    implementations, more = state
    for kind, implementation in implementations.items():
        function.register(kind, implementation)
    function.__dict__.update(more)


def make_parameters(kind: type, name: str) -> object:
    """Return a `ParamSpec` or `TypeVarTuple`; its module is that of the code that makes it."""
    return eval("kind(name)", {"__name__": "__main__", "kind": kind, "name": name})


PROTOCOL = 3

_LAZY_ANNOTATIONS = sys.version_info >= (3, 14)
_CACHED: type = functools._lru_cache_wrapper
_NEW_TYPE: type = typing.NewType
# Arguments of a code object's constructor, in order; the same from 3.11 to 3.14.
_CODE = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_nlocals",
    "co_stacksize",
    "co_flags",
    "co_code",
    "co_consts",
    "co_names",
    "co_varnames",
    "co_filename",
    "co_name",
    "co_qualname",
    "co_firstlineno",
    "co_linetable",
    "co_exceptiontable",
    "co_freevars",
    "co_cellvars",
)
_ALIAS: type | None = getattr(typing, "TypeAliasType", None)  # since 3.12

# Objects of the session while a checkpoint is loaded: host functions, `answer`, `_out`.
_offered: Mapping[str, object] = {}


def offered(injected: Mapping[str, object]) -> None:
    """Set the objects that `injected_as` finds."""
    global _offered  # noqa: PLW0603 (pickles call functions, not methods)
    _offered = injected


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a session whose `__main__` is `live`; `injected` objects are pickled by name."""

    def __init__(self, file: Any, live: dict[str, object], injected: Mapping[str, object]) -> None:
        super().__init__(file, protocol=PROTOCOL)
        self._live = live
        self._injected = {id(value): name for name, value in injected.items()}
        self._shells: set[int] = set()
        # The first object that can be referred to; the reader has its own there (`BEGINNING`).
        self.memo = {id(live): (0, live)}

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of `obj`; pickle calls this except for its own kinds."""
        name = self._injected.get(id(obj))
        if name is not None:
            return injected_as, (name,)
        kind = type(obj)
        if kind is FunctionType and obj.__globals__ is self._live:
            return self._function(obj)
        reduce = _REDUCERS.get(kind)
        if reduce is not None:
            return reduce(self, obj)
        reduce_value = reducer(kind, obj)
        if reduce_value is not None:
            return reduce_value(obj)
        # cloudpickle would save the unread text.
        if issubclass(kind, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):
            raise PicklingError("an open file cannot be pickled")
        # Its attributes are a bare number, which is another file's in the new session.
        connections = loaded("multiprocessing.connection")
        if connections is not None and issubclass(kind, connections.Connection):
            raise PicklingError("a connection is open in this process only")
        return super().reducer_override(obj)

    def _function(self, function: Any) -> tuple[Any, ...]:
        cells = function.__closure__ or ()
        # These are made empty at first sight; `fill_function` fills them.
        self._shells.update(map(id, cells))
        state = {
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "__dict__": function.__dict__,
        }
        if _LAZY_ANNOTATIONS:
            state["__annotate__"] = function.__annotate__
        else:
            state["__annotations__"] = function.__annotations__
        if hasattr(function, "__type_params__"):
            state["__type_params__"] = function.__type_params__
        filled = [(cell, cell.cell_contents) for cell in cells if _is_full(cell)]
        arguments = function.__code__, self._live, function.__name__, function.__closure__
        return make_function, arguments, (state, filled), None, None, fill_function

    def _code(self, code: CodeType) -> tuple[Any, ...]:
        # cloudpickle drops the file name since 3.1.3, and thereby the lines in a traceback.
        return make_code, tuple(getattr(code, part) for part in _CODE)

    def _cell(self, cell: CellType) -> tuple[Any, ...]:
        if id(cell) in self._shells or not _is_full(cell):
            return CellType, ()
        return CellType, (), cell.cell_contents, None, None, fill_cell

    def _cached(self, cached: Any) -> tuple[Any, ...]:
        """Return the reduction of a cached function without its cache."""
        wrapped, options = cached.__wrapped__, cached.cache_parameters()
        return make_cached, (wrapped, options["maxsize"], options["typed"])

    def _new_type(self, new: Any) -> tuple[Any, ...]:
        if new.__module__ != "__main__":
            return NotImplemented  # type: ignore[no-any-return]
        return make_new_type, (new.__name__, new.__supertype__)

    def _alias(self, alias: Any) -> tuple[Any, ...]:
        if alias.__module__ != "__main__":
            return NotImplemented  # type: ignore[no-any-return]
        return make_alias, (alias.__name__, alias.__value__, alias.__type_params__)


_REDUCERS: dict[type, Callable[[Pickler, Any], Any]] = {
    CodeType: Pickler._code,
    CellType: Pickler._cell,
    _CACHED: Pickler._cached,
    _NEW_TYPE: Pickler._new_type,
}
if _ALIAS is not None:
    _REDUCERS[_ALIAS] = Pickler._alias


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises if there is nothing in it
    except ValueError:
        return False
    return True


# First object of each pickle: `live_globals` gets number 0 among the objects to refer to.
BEGINNING = b"\x80\x03c%b\nlive_globals\n)Rq\x00." % __name__.encode()


# ── what pickles call ─────────────────────────────────────────────────────────────────────────


def live_globals() -> dict[str, object]:
    """Return the namespace of this session."""
    return vars(sys.modules["__main__"])


def injected_as(name: str) -> object:
    """Return the session's own object `name`."""
    try:
        return _offered[name]
    except KeyError:
        raise NameError(f"this session offers no {name!r}") from None


def make_code(*parts: Any) -> CodeType:
    """Return the code of a function, which still names its original cell."""
    return CodeType(*parts)


def make_function(
    code: CodeType, live: dict[str, Any], name: str, closure: tuple[CellType, ...] | None
) -> FunctionType:
    """Return a function as `def` makes it in a cell, before `fill_function`."""
    return FunctionType(code, live, name, None, closure)


def fill_function(
    function: FunctionType, state: tuple[dict[str, Any], list[tuple[CellType, object]]]
) -> None:
    """Give a new function its attributes, and its cells their contents."""
    attributes, filled = state
    for name, value in attributes.items():
        setattr(function, name, value)
    for cell, content in filled:
        cell.cell_contents = content


def fill_cell(cell: CellType, content: object) -> None:
    """Give a new cell its content."""
    cell.cell_contents = content


def make_cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> object:
    """Return `function` with an empty cache."""
    return functools.lru_cache(maxsize, typed)(function)


def make_new_type(name: str, supertype: Any) -> object:
    """Return a `typing.NewType` of the session."""
    new = _NEW_TYPE(name, supertype)
    new.__module__ = "__main__"
    return new


def make_alias(name: str, value: Any, type_params: tuple[Any, ...]) -> object:
    """Return the object of `type name = value`; its module is that of the code that makes it."""
    names = {"__name__": "__main__", "new": _ALIAS, "name": name, "value": value}
    return eval("new(name, value, type_params=given)", {**names, "given": type_params})
