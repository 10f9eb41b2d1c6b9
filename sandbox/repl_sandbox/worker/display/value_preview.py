"""Preview of a value in one short line, and its size, without running any code of the user's.

A `__repr__` may hang, lie, print or fail; the preview shows the value all the same. Objects appear
as `Point(x=1, y=2)`, by the attributes of the instance.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterable
from itertools import islice
from types import MethodDescriptorType
from typing import Any

from ..namespace.library_types import frame_blocks, is_array, is_frame, library_preview
from ..namespace.safe_inspect import (
    MISSING,
    attributes,
    class_dict,
    class_name,
    instance_dict,
    loaded_class,
    lookup,
    module_dict,
    mro,
    plain,
    read,
    type_name,
)

# Characters: one line of a listing.
PREVIEW_LIMIT = 120
# Below this depth, containers and objects are shown as `[...]`: enough for a list of records.
_DEPTH = 3
# More items than this cannot fit a line, so no further items are read.
_ITEMS = 60
# Longer numbers are not converted to digits, which takes quadratic time.
_BITS = 400

_GC_HEAD = 16  # sys.getsizeof adds this for an object that the collector tracks, on 64 bits

# References taken once: the user may rebind these names of modules.
_repr = repr
_getsizeof = sys.getsizeof


def preview(value: object) -> str:
    """Return a preview of `value`, at most `PREVIEW_LIMIT` characters. Never raises."""
    try:
        text = _preview(value, PREVIEW_LIMIT, _DEPTH)
    # Boundary: other threads of the user may change the value meanwhile (RuntimeError), and memory
    # may be short. A missing preview is no reason to lose a result.
    except Exception:  # noqa: BLE001
        text = f"<{type_name(value)}>"
    return text if len(text) <= PREVIEW_LIMIT else text[: PREVIEW_LIMIT - 3] + "..."


def _preview(value: Any, limit: int, depth: int) -> str:
    cls = type(value)
    render = _BY_IDENTITY.get(id(cls))
    if render is not None:
        return render(value, limit, depth)
    if issubclass(cls, type):
        return f"class {class_name(value)}"
    for base, render in _RENDERERS.items():
        if issubclass(cls, base):
            return _subclass(value, render, limit, depth)
    return library_preview(value) or _object(value, limit, depth)


def _text(value: str, limit: int, depth: int) -> str:
    count = str.__len__(value)
    head = str.__getitem__(value, slice(0, limit))
    if count <= limit:
        shown = _repr(head)
        if len(shown) <= limit:
            return shown
    note = f"... ({count:,} characters)"
    return _cut_repr(head, max(limit - len(note), 8)) + note


def _cut_repr(head: str | bytes, limit: int) -> str:
    """Return a repr of the beginning of `head`, at most `limit` characters, with closed quotes."""
    keep = min(len(head), limit)
    shown = _repr(head[:keep])
    while len(shown) > limit and keep > 1:
        # Escapes make a repr longer than its text, up to ten times.
        keep = max(1, min(keep - 1, keep * limit // len(shown)))
        shown = _repr(head[:keep])
    return shown


def _bytes(value: bytes, limit: int, depth: int) -> str:
    return _byte_text(bytes.__len__(value), bytes.__getitem__(value, slice(0, limit)), limit)


def _bytearray(value: bytearray, limit: int, depth: int) -> str:
    head = bytes(bytearray.__getitem__(value, slice(0, limit)))
    return f"bytearray({_byte_text(bytearray.__len__(value), head, limit - 11)})"


def _byte_text(count: int, head: bytes, limit: int) -> str:
    shown = _repr(head)
    if count <= limit and len(shown) <= limit:
        return shown
    note = f"... ({count:,} bytes)"
    return _cut_repr(head, max(limit - len(note), 8)) + note


def _int(value: int, limit: int, depth: int) -> str:
    bits = int.bit_length(value)
    return int.__repr__(value) if bits <= _BITS else f"an int of {bits:,} bits"


def _float(value: float, limit: int, depth: int) -> str:
    return float.__repr__(value)


def _complex(value: complex, limit: int, depth: int) -> str:
    return complex.__repr__(value)


def _constant(value: object, limit: int, depth: int) -> str:
    return _repr(value)


def _items(opening: str, closing: str, items: Iterable[str], count: int, limit: int) -> str:
    """Return the items that fit into `limit`, and the total number if not all do."""
    shown: list[str] = []
    used = len(opening) + len(closing) + len(f", ...] ({count:,} items)")
    for item in items:
        used += len(item) + 2
        if used > limit and shown:
            break
        shown.append(item)
    if len(shown) == count:
        return opening + ", ".join(shown) + closing
    return f"{opening}{', '.join([*shown, '...'])}{closing} ({count:,} items)"


def _sequence(opening: str, closing: str, base: Any) -> Callable[[Any, int, int], str]:
    def render(value: Any, limit: int, depth: int) -> str:
        count = base.__len__(value)
        if count and not depth:
            return f"{opening}...{closing}"
        first = islice(base.__iter__(value), _ITEMS)
        items = (_preview(item, limit // 2, depth - 1) for item in first)
        end = "," + closing if base is tuple and count == 1 else closing
        return _items(opening, end, items, count, limit) if count else _empty(base)

    return render


def _empty(base: type) -> str:
    return _repr(base())


def _mapping(value: dict[Any, Any], limit: int, depth: int) -> str:
    count = dict.__len__(value)
    if count and not depth:
        return "{...}"
    pairs = islice(dict.items(value), _ITEMS)
    items = (
        f"{_preview(key, limit // 2, depth - 1)}: {_preview(item, limit // 2, depth - 1)}"
        for key, item in pairs
    )
    return _items("{", "}", items, count, limit)


def _module(value: types.ModuleType, limit: int, depth: int) -> str:
    return f"module {plain(module_dict(value).get('__name__'))}".rstrip()


def _function(value: types.FunctionType, limit: int, depth: int) -> str:
    code = value.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults: tuple[object, ...] = value.__defaults__ or ()
    first = len(positional) - len(defaults)
    parts = [
        name if index < first else f"{name}={_preview(defaults[index - first], 20, 0)}"
        for index, name in enumerate(positional)
    ]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    parts.extend(_keywords(value, code))
    signature = ", ".join(parts)
    name = code.co_name
    return f"lambda {signature}" if name == "<lambda>" else f"def {name}({signature})"


def _keywords(value: types.FunctionType, code: types.CodeType) -> Iterable[str]:
    """Return the keyword part of a signature, after the positional parameters."""
    end = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    if code.co_flags & 0x04:  # CO_VARARGS
        yield "*" + names[end]
        end += 1
    elif code.co_kwonlyargcount:
        yield "*"
    defaults = value.__kwdefaults__ or {}
    for name in names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
        default = dict.get(defaults, name, MISSING)
        yield name if default is MISSING else f"{name}={_preview(default, 20, 0)}"
    if code.co_flags & 0x08:  # CO_VARKEYWORDS
        yield "**" + names[end]


def _named(kind: str) -> Callable[[Any, int, int], str]:
    def render(value: Any, limit: int, depth: int) -> str:
        return f"{kind} {plain(value.__name__)}"

    return render


def _method(value: types.MethodType, limit: int, depth: int) -> str:
    function = value.__func__
    name = function.__name__ if type(function) is types.FunctionType else ""
    return f"method {plain(name)} of {type_name(value.__self__)}"


def _exception(value: BaseException, limit: int, depth: int) -> str:
    arguments = BaseException.__dict__["args"].__get__(value)
    items = (_preview(item, limit // 2, depth - 1) for item in arguments)
    return _items(f"{type_name(value)}(", ")", items, len(arguments), limit) if depth else "..."


# By exact class first, then by base class, in this order: bool comes before int.
_RENDERERS: dict[type, Callable[[Any, int, int], str]] = {
    types.NoneType: _constant,
    bool: _constant,
    int: _int,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: _bytearray,
    list: _sequence("[", "]", list),
    tuple: _sequence("(", ")", tuple),
    set: _sequence("{", "}", set),
    frozenset: _sequence("frozenset({", "})", frozenset),
    collections.deque: _sequence("deque([", "])", collections.deque),
    dict: _mapping,
    range: _constant,
    types.EllipsisType: _constant,
    types.NotImplementedType: _constant,
    types.ModuleType: _module,
    types.FunctionType: _function,
    types.BuiltinFunctionType: _named("built-in"),
    types.MethodType: _method,
    types.GeneratorType: _named("generator"),
    types.CoroutineType: _named("coroutine"),
    BaseException: _exception,
}


_BY_IDENTITY = {id(cls): render for cls, render in _RENDERERS.items()}
_BUILT_IN = frozenset(_BY_IDENTITY)  # none of these has a `__sizeof__` of the user's


def show(cls: type, as_: type | Callable[[Any], str]) -> None:
    """Preview instances of `cls`, a class of this package, like a user's, or by a function."""
    known = _RENDERERS.get(as_) if isinstance(as_, type) else None
    _BY_IDENTITY[id(cls)] = known or (lambda value, limit, depth: str(as_(value)))


def _subclass(value: Any, render: Callable[[Any, int, int], str], limit: int, depth: int) -> str:
    """Return the preview of an instance of a subclass of a class in the table."""
    name = type_name(value)
    if render in (_module, _exception):
        return render(value, limit, depth)
    if (member := _enum_member(value)) is not None:
        return f"{name}.{member}"
    fields = lookup(type(value), "_fields")
    if issubclass(type(value), tuple) and type(fields) is tuple:
        pairs = zip(fields, tuple.__iter__(value), strict=False)
        return _fields(name, pairs, limit, depth)
    return f"{name}({render(value, limit - len(name) - 2, depth)})"


def _enum_member(value: object) -> str | None:
    """Return the name of a member of an enumeration, None for any other value."""
    enum = loaded_class("enum", "Enum")
    if enum is None or not issubclass(type(value), enum):
        return None
    member = dict.get(instance_dict(value) or {}, "_name_")
    return member if type(member) is str else None


def _fields(name: str, pairs: Iterable[tuple[Any, object]], limit: int, depth: int) -> str:
    shown = list(islice(pairs, _ITEMS))
    if not depth:
        return f"{name}(...)"
    half = (limit - len(name)) // 2
    items = (f"{plain(field)}={_preview(item, half, depth - 1)}" for field, item in shown)
    return _items(f"{name}(", ")", items, len(shown), limit)


def _object(value: object, limit: int, depth: int) -> str:
    if (member := _enum_member(value)) is not None:
        return f"{type_name(value)}.{member}"
    pairs = list(islice(attributes(value), _ITEMS))
    return (
        _fields(type_name(value), pairs, limit, depth) if pairs else f"<{type_name(value)} object>"
    )


def shallow_size(value: object) -> int:
    """Return the size of `value` in bytes, without objects that it refers to.

    The data of arrays and frames counts. A `__sizeof__` written in Python is not called; the
    built-in one of a base class is.
    """
    cls = type(value)
    if id(cls) in _BUILT_IN:
        return _getsizeof(value)
    if is_array(value):
        size: int = read(value, "nbytes")
        return size
    if is_frame(value):
        sizes = [read(array, "nbytes") for array in frame_blocks(value)]
        return sum(size for size in sizes if type(size) is int)
    if type(lookup(cls, "__sizeof__")) is MethodDescriptorType:
        return _getsizeof(value)
    for base in mro(cls):
        own: Any = class_dict(base).get("__sizeof__")
        if type(own) is MethodDescriptorType:
            return int(own(value)) + _GC_HEAD
    return 0  # unreachable: object has one
