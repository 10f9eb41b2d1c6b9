"""The namespace of a session: `__main__`, the sources of its cells, a safe look at values."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, Final, cast

from ..protocol.values import REPL_NAMES

if TYPE_CHECKING:
    import asyncio
    from ast import Module


# `as_builtin`: a Python function in the place of a builtin one.
#
# A Python function that is an attribute of a class is bound as a method, and a builtin one is
# not: `class Test: handler = signal.default_int_handler` gives `Test().handler` one more
# argument.


class _Builtin:
    """Displayed, inspected, copied and pickled like the builtin function of its name."""

    __name__: str
    # isinstance() reads it, and so do `inspect.isbuiltin` and `pydoc`.
    __class__ = property(lambda self: BuiltinFunctionType)

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__


def as_builtin(function: Any, original: Callable[..., Any]) -> Any:
    """Return `function` as a callable that looks like the builtin function `original`.

    Calls have no frame but that of `function`: it is the static `__call__` of a type of its own.
    """
    # Texts of TypeError name the function; signatures of builtin functions have no annotations.
    function.__name__, function.__qualname__ = original.__name__, original.__qualname__
    function.__annotations__ = {}
    kind = type(type(original).__name__, (_Builtin,), {"__call__": staticmethod(function)})
    builtin: Any = kind()
    module = original.__module__
    vars(builtin).update(
        __name__=original.__name__,
        __qualname__=original.__qualname__,
        __doc__=original.__doc__,
        __module__=module,
        __self__=sys.modules[module],
        __wrapped__=function,  # with the signature
    )
    return builtin


# Source text of past cells, stored where tracebacks and `inspect.getsource` look for it.

# Number of cells kept, the newest first. Lines cost memory in every session; functions of an older
# cell still run, only without source in a traceback.
KEPT_CELLS = 1_000
KEPT_CHARACTERS = 16 << 20
# Cells forgotten together: forgetting one with each cell would cost time in each cell.
FORGOTTEN_AT_ONCE = 100
# Characters. A longer cell triggers a count of all kept sources; shorter cells add at most 4 MiB
# beyond the limit, and cost nothing each.
COUNTED = 1 << 12

# The entry of a file in linecache: size, no modification time (so linecache never checks the disk),
# lines and name.
_Entry = tuple[int, None, list[str], str]

# The dictionary of linecache itself: the user may rebind its name, or empty this one.
_cache: dict[str, object] = linecache.cache  # type: ignore[assignment]
_entries: deque[_Entry] = deque()
_append = _entries.append


def cell_name(number: int) -> str:
    """Return the file name of a cell."""
    return f"<cell {number}>"


def keep_cell(number: int, source: str, *, line: bool = False) -> str:
    """Store the lines of a cell, forget the oldest beyond the limits; return its file name.

    `line`: whether the source is known to be a single line.
    """
    name = f"<cell {number}>"  # `cell_name`, without the call
    size = len(source)
    lines = [source + "\n"] if line else _lines(source)
    entry = _cache[name] = (size, None, lines, name)
    _append(entry)
    if size > COUNTED or len(_entries) >= KEPT_CELLS + FORGOTTEN_AT_ONCE:
        _trim()
    return name


def _lines(source: str) -> list[str]:
    if "\r" in source:  # the tokenizer accepts all three line endings, and no others
        source = source.replace("\r\n", "\n").replace("\r", "\n")
    return [line + "\n" for line in source.split("\n")] if "\n" in source else [source + "\n"]


def _trim() -> None:
    total = sum(entry[0] for entry in _entries)
    while len(_entries) > KEPT_CELLS or (total > KEPT_CHARACTERS and len(_entries) > 1):
        oldest = _entries.popleft()
        total -= oldest[0]
        if _cache.get(oldest[3]) is oldest:
            del _cache[oldest[3]]


def put_back(name: str) -> None:
    """Undo changes of the user's code to the lines of the cell `name`, for example clearcache()."""
    for entry in reversed(_entries):
        if entry[3] == name:
            linecache.cache[name] = entry
            return


def drop_last() -> None:
    """Forget the newest cell."""
    entry = _entries.pop()
    if _cache.get(entry[3]) is entry:
        del _cache[entry[3]]


def latest_cell() -> tuple[str, int]:
    """Return the file name of the newest cell, and its last line that is not empty."""
    if not _entries:
        return cell_name(0), 0
    _, _, lines, name = _entries[-1]
    return name, len("".join(lines).rstrip().split("\n"))


def source_line(name: str, number: int | None) -> str | None:
    """Return line `number` of the newest cell if it is `name`, else None."""
    if number is None or not _entries or _entries[-1][3] != name:
        return None
    return next(iter(_entries[-1][2][number - 1 : number]), None) if number > 0 else None


def cell_texts() -> list[tuple[int, str]]:
    """Return the kept cells by number, the oldest first."""
    numbered = ((entry[3].removeprefix("<cell ")[:-1], entry[2]) for entry in _entries)
    return [(int(number), "".join(lines)[:-1]) for number, lines in numbered]


def forget_cells() -> None:
    """Forget all cells."""
    for entry in _entries:
        _cache.pop(entry[3], None)
    _entries.clear()


# Sources of classes in cells, for `inspect.getsource`: a class names its module, and no file.

_getfile = inspect.getfile


def install_lookup() -> None:
    """Make `inspect` find the classes of cells; called once, in the template."""
    inspect.getfile = _file_or_cell


@wraps(_getfile)
def _file_or_cell(object: Any) -> str:
    try:
        return _getfile(object)
    except OSError:
        cell = _cell_of(object) if isinstance(object, type) else None
        if cell is None:
            raise
        return cell


def _cell_of(cls: type) -> str | None:
    """Return the cell with the source of `cls`; None if it is not kept, or ambiguous."""
    cells = {cell_name(number): text for number, text in cell_texts() if _defines(text, cls)}
    for code in _codes(cls):
        if code.co_filename in cells and code.co_qualname.startswith(f"{cls.__qualname__}."):
            return code.co_filename
    return next(iter(cells)) if len(cells) == 1 else None


def _codes(cls: type) -> Iterator[CodeType]:
    """Return the code objects of a class statement's definitions."""
    for value in vars(cls).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if type(function) is FunctionType:
            yield function.__code__


def _defines(text: str, cls: type) -> bool:
    """Return whether a cell defines a class of this name, at the line of `cls` if that is known."""
    if cls.__name__ not in text:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    lines = {line for name, line in _classes(tree, "") if name == cls.__qualname__}
    first = vars(cls).get("__firstlineno__")  # from Python 3.13 on
    return bool(lines) if first is None else first in lines


def _classes(node: ast.AST, within: str) -> Iterator[tuple[str, int]]:
    """Yield the qualified name and the line (or first decorator's) of each class below `node`."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{within}{child.name}."
        if isinstance(child, ast.ClassDef):
            first: ast.ClassDef | ast.expr = next(iter(child.decorator_list), child)
            yield f"{within}{child.name}", first.lineno
        elif name != within:
            name += "<locals>."
        yield from _classes(child, name)


# State between the cells of a session: the `__main__` module and the engine's objects in it.
#
# Cells run in the dictionary of a real module that is registered as `__main__`: pickle,
# dataclasses, multiprocessing and `typing.get_type_hints` look names up there.

_MISSING = object()
# The module of the engine's objects in a namespace. Pickles of them name it, whichever library
# walks through all globals, and get the live object of that name back.
HOST_MODULE = "repl_host"
# The way out for code that calls the host from a process of its own.
THREADS_ONLY = (
    "functions of the host work in threads: use ThreadPoolExecutor, or joblib with "
    "backend='threading'"
)


class Namespace:
    """A fresh `__main__`, registered in `sys.modules`.

    `future`: compiler flags of the `from __future__` statements so far. `loop`: the event loop of
    top-level `await`, made on first use. `offers_loop`: whether code that does not await may start
    tasks on the loop. `protected`: objects that `restore` puts back. `check`: a language policy's
    function that takes a cell's syntax tree, and returns the one to run or raises. `ends_cell`:
    returns whether the host sent the last SIGINT, to end the running cell.
    """

    __slots__ = (
        "_host",
        "_shown",
        "check",
        "ends_cell",
        "future",
        "globals",
        "injected",
        "loop",
        "module",
        "offers_loop",
        "protected",
    )

    def __init__(self, ends_cell: Callable[[], bool] | None = None) -> None:
        self.ends_cell = ends_cell
        self.module = ModuleType("__main__")
        self.globals: dict[str, object] = self.module.__dict__
        self.globals["__builtins__"] = builtins
        self.future = 0
        self.check: Callable[[Module], Module] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.offers_loop = False
        self.injected: dict[str, object] = {}
        self.protected: dict[str, object] = {}
        self._shown: object = _MISSING
        self._host = ModuleType(HOST_MODULE, "The functions of the host, and the session's own.")
        sys.modules["__main__"], sys.modules[HOST_MODULE] = self.module, self._host

    def inject(self, name: str, value: object, *, protected: bool = False) -> None:
        """Put an object of the engine under `name`, where it is no variable of the user's.

        The user may overwrite or delete it, and owns the new value. With `protected`, `restore`
        puts the object back.
        """
        self.globals[name] = value
        self.injected[name] = value
        setattr(self._host, name, value)
        if isinstance(value, FunctionType):
            value.__module__ = HOST_MODULE
        if protected:
            self.protected[name] = value
        else:
            self.protected.pop(name, None)

    def restore(self) -> list[str]:
        """Put the protected names back, and return those that were missing or overwritten."""
        restored = []
        present = self.globals.get
        for name, value in self.protected.items():
            if present(name) is not value:
                self.globals[name] = value
                restored.append(name)
        return restored

    @property
    def hidden(self) -> set[str]:
        """Return the injected names that still hold the injected object."""
        present = self.globals.get
        return {name for name, value in self.injected.items() if present(name, None) is value}

    def variables(self) -> Iterator[tuple[str, object]]:
        """Yield the user's variables, in the order in which their names were first bound.

        Objects of the engine, `_`, and names with double underscores at both ends are not the
        user's. Keys of the dictionary that are not plain str have no name in code, and are left
        out.
        """
        # A copy, because threads of the user may bind names meanwhile; copying is one C call.
        for name, value in self.globals.copy().items():
            if not self.hides(name, value):
                yield name, value

    def hides(self, name: object, value: object) -> bool:
        """Return whether the value under `name` in `globals` is no variable of the user's."""
        if type(name) is not str or self.injected.get(name, _MISSING) is value:
            return True
        return name[:1] == "_" and (name in REPL_NAMES or (name[:2] == "__" == name[-2:]))

    def show(self, value: object) -> None:
        """Bind a displayed `value` to `_`, unless the user keeps a value of their own there."""
        previous = self.globals.get("_", _MISSING)
        if previous is _MISSING or previous is self._shown:
            self.globals["_"] = self._shown = value


# Inspection of an object without running any code of the user's.
#
# Ordinary attribute access, `isinstance`, `len` and `repr` run methods that a class may define.
# The functions here read through the interpreter's own descriptors, which a class cannot replace,
# and compare classes by identity, because a metaclass may define `__eq__` and `__hash__`. The
# only exception is a class whose own dictionary has keys with their own `__eq__`.

MISSING: Final = object()

# A reference taken once: the user may later rebind `sys.modules`.
_modules = sys.modules

mro: Any = type.__dict__["__mro__"].__get__
class_dict: Any = type.__dict__["__dict__"].__get__
_class_name: Any = type.__dict__["__name__"].__get__
_class_qualname: Any = type.__dict__["__qualname__"].__get__
_class_module: Any = type.__dict__["__module__"].__get__
_class_flags: Any = type.__dict__["__flags__"].__get__
module_dict: Any = vars(ModuleType)["__dict__"].__get__

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by a newer C extension
# A name can be any str; a display needs no more characters.
_LONGEST_NAME = 100


def plain(text: object, limit: int = _LONGEST_NAME) -> str:
    """Return the first `limit` characters of `text` as a true str, "" if it is no str."""
    if not issubclass(type(text), str):
        return ""
    return str.__getitem__(cast(str, text), slice(0, limit))


def class_name(cls: type) -> str:
    """Return the name of a class, as given by its statement."""
    return plain(_class_name(cls))


def full_name(cls: type) -> str:
    """Return the name of a class with its module, left out for builtins and `__main__`."""
    try:
        module = plain(_class_module(cls))
    except AttributeError:  # a class may lack a module
        module = ""
    name = plain(_class_qualname(cls))
    return name if module in ("", "builtins", "__main__") else f"{module}.{name}"


def type_name(value: object) -> str:
    """Return the name of the class of `value`."""
    return class_name(type(value))


def lookup(cls: type, name: str) -> object:
    """Return the unbound attribute `name` of the class and its bases; MISSING if there is none."""
    for base in mro(cls):
        found = class_dict(base).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def read(value: object, name: str) -> Any:
    """Return the attribute `name` of `value` if stored in C (a slot, a C field), else MISSING."""
    entry: Any = lookup(type(value), name)
    kind = type(entry)
    if kind is not GetSetDescriptorType and kind is not MemberDescriptorType:
        return MISSING
    try:
        return entry.__get__(value)
    except AttributeError:  # an empty slot
        return MISSING


def instance_dict(value: object) -> dict[Any, Any] | None:
    """Return the `__dict__` of an instance, or None if it has none of the ordinary kind.

    The dict may be of a subclass: read it with dict's own methods.
    """
    found = read(value, "__dict__")
    return found if issubclass(type(found), dict) else None


def attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield the named attributes of an instance itself: slots first, then its `__dict__`."""
    for base in mro(type(value)):
        if not _class_flags(base) & _HEAP_TYPE:
            continue
        for name, entry in class_dict(base).items():
            if type(entry) is MemberDescriptorType and type(name) is str and name[:2] != "__":
                content = read(value, name)
                if content is not MISSING:
                    yield name, content
    content = instance_dict(value)
    if content is not None:
        for name, attribute in dict.items(content):
            if type(name) is str:
                yield name, attribute


def loaded_class(module: str, name: str) -> type | None:
    """Return the class `name` of the library `module` if that has been imported, else None."""
    found = _modules.get(module)
    if type(found) is not ModuleType:
        return None
    cls = module_dict(found).get(name)
    return cls if issubclass(type(cls), type) else None


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether the class of `value` is exactly the class `name` of the library `module`."""
    cls = type(value)
    return _class_name(cls) == name and cls is loaded_class(module, name)


# Previews of values of numpy, pandas, torch and the standard library.
#
# Each class is recognised only as the loaded library's own, by identity; nothing is imported.

_repr = repr
_LONGEST = 200  # characters; a scalar may be a long text


def is_array(value: object) -> bool:
    """Return whether `value` is a numpy array, not of a subclass.

    A class in numpy's place lacks the C field for the size.
    """
    return is_a(value, "numpy", "ndarray") and type(read(value, "nbytes")) is int


def is_frame(value: object) -> bool:
    """Return whether `value` is a pandas DataFrame or Series, not of a subclass."""
    return is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series")


def frame_shape(frame: Any) -> tuple[int, ...] | None:
    """Return the shape of a pandas frame or series, which only pandas' own Python code knows."""
    shape: Any = lookup(type(frame), "shape")
    getter: Any = shape.fget if type(shape) is property else None
    if type(getter) is not FunctionType or getter.__code__.co_filename.startswith("<cell "):
        return None  # not pandas' own: the user replaced it
    found = getter(frame)
    return found if type(found) is tuple else None


def frame_blocks(frame: object) -> tuple[Any, ...]:
    """Return the arrays of a pandas frame or series, each with several columns."""
    manager = dict.get(instance_dict(frame) or {}, "_mgr")
    blocks = read(manager, "blocks")  # a field of a frame's manager, an attribute of a series'
    if blocks is MISSING:
        blocks = dict.get(instance_dict(manager) or {}, "blocks")
    return tuple(read(block, "values") for block in blocks) if type(blocks) is tuple else ()


def _array(value: Any) -> str:
    dtype = read(value, "dtype")
    name = read(dtype, "name")
    kind = name if type(name) is str else plain(_repr(dtype))
    return f"{type_name(value)} of shape {tuple(read(value, 'shape'))}, {kind}"


def _frame(value: Any) -> str | None:
    shape = frame_shape(value)
    return None if shape is None else f"{type_name(value)} of shape {shape}"


def _moment(value: Any) -> str | None:
    zone = read(value, "tzinfo")
    # A tzinfo may be of a user's class, whose code would return the offset.
    return _repr(value) if zone is None or zone is MISSING else None


def _pattern(value: Any) -> str | None:
    kind = type(value.pattern)
    return _repr(value) if kind is str or kind is bytes else None


def _path(value: Any) -> str | None:
    parts = read(value, "_raw_paths")  # since 3.12, where the parts are kept as given
    if parts is not MISSING and any(type(part) is not str for part in parts):
        return None
    return f"{type_name(value)}({str(value)!r})"


# Classes of libraries, recognised only as the loaded library's own.
_LIBRARY: dict[tuple[str, str], Callable[[Any], str | None]] = {
    ("numpy", "ndarray"): _array,
    ("torch", "Tensor"): _array,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _frame,
    ("datetime", "datetime"): _moment,
    ("datetime", "time"): _moment,
    ("datetime", "date"): _repr,
    ("datetime", "timedelta"): _repr,
    ("decimal", "Decimal"): _repr,
    ("re", "Pattern"): _pattern,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "PurePosixPath"): _path,
}
_LIBRARY_NAMES = frozenset(name for _, name in _LIBRARY)


def library_preview(value: object) -> str | None:
    """Return a short preview of `value` if its class is a known library's, else None."""
    name = type_name(value)
    if name not in _LIBRARY_NAMES:
        return _numpy_scalar(value, name)
    for (module, cls), render in _LIBRARY.items():
        if cls == name and is_a(value, module, cls):
            return render(value)
    return None


def _numpy_scalar(value: Any, name: str) -> str | None:
    generic = loaded_class("numpy", "generic")
    if generic is None or not issubclass(type(value), generic) or not is_a(value, "numpy", name):
        return None
    item: Any = lookup(generic, "item")
    return f"{name}({_repr(item(value))})"[:_LONGEST]
