"""A value shown in one short line, or as the result of a cell, without code of the user's."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterable
from itertools import chain, islice
from types import MethodDescriptorType
from typing import Any

from .namespace import (
    MISSING,
    attributes,
    class_dict,
    class_name,
    frame_blocks,
    instance_dict,
    is_array,
    is_frame,
    library_preview,
    loaded_class,
    lookup,
    module_dict,
    mro,
    plain,
    read,
    type_name,
)

# Preview of a value in one short line, and its size, without running any code of the user's.
#
# A `__repr__` may hang, lie, print or fail; the preview shows the value all the same. Objects
# appear as `Point(x=1, y=2)`, by the attributes of the instance.

# Characters: one line of a listing.
PREVIEW_LIMIT = 120
# Below this depth, containers and objects are shown as `[...]`: enough for a list of records.
_PREVIEW_DEPTH = 3
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
        text = _preview(value, PREVIEW_LIMIT, _PREVIEW_DEPTH)
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


# Display of a cell's last expression, like a REPL's, but bounded.
#
# A value with a short repr is shown by its own repr. A huge value is cut before its conversion to
# text, so its display takes neither the time nor the memory of the whole repr. The `__repr__` of
# a user's class runs as in any REPL, inside the cell and within its time limit.

# Characters. No reader reads further, and the limit keeps a result well below the largest frame.
DISPLAY_LIMIT = 1 << 20

# Assumed length of an object whose repr is unknown before calling it. Only the number of objects to
# visit depends on it.
_OBJECT = 32
# Containers nested deeper than this are not followed: the walk is recursive, and so may be the
# user's code around it.
_SCREEN_DEPTH = 200


def _by_id(texts: dict[type, str]) -> dict[int, str]:
    return {id(cls): text for cls, text in texts.items()}


# By the identity of classes: a user's metaclass may define `__eq__`, and no hash.
_OPEN = _by_id({list: "[", tuple: "(", set: "{", frozenset: "frozenset({", dict: "{"})
_CLOSE = _by_id({list: "]", tuple: ")", set: "}", frozenset: "})", dict: "}"})
_ORDERED = frozenset(map(id, (list, tuple, dict)))
_TEXTS = _by_id({str: "characters", bytes: "bytes", bytearray: "bytes"})
_SCALARS = frozenset(map(id, (int, float, bool, complex, type(None))))


def display(value: object, limit: int = DISPLAY_LIMIT) -> str:
    """Return the repr of `value`, with its middle left out beyond `limit` characters.

    Raises:
        Exception: any exception of the `__repr__` of a user's class.
    """
    if id(type(value)) in _SCALARS:
        return _repr(value)
    if _fits(value, limit):
        return encodable(cut(_repr(value), limit))
    return encodable(_bounded(value, limit))


def cut(text: str, limit: int) -> str:
    """Return `text` with its middle beyond `limit` characters replaced by a line with the count."""
    if len(text) <= limit:
        return text
    half = limit // 2
    head, tail = text[:half], text[len(text) - half :]
    return f"{head}\n... [{len(text) - 2 * half:,} characters left out] ...\n{tail}"


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which no encoding can carry, escaped as in a repr."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _fits(value: Any, limit: int) -> bool:
    """Return whether the repr of `value` is at most `limit` long, judging built-in values."""
    return _remaining(value, limit, set()) > 0


def _remaining(value: Any, limit: int, path: set[int]) -> int:
    """Return the rest of `limit` after the repr of `value`; 0 or less as soon as none is left.

    `path` holds the identities of the containers around `value`.
    """
    cls = id(type(value))
    if cls in _TEXTS:
        return limit - len(value) - 2
    if cls in _SCALARS:
        return limit - 3
    if cls not in _OPEN:
        return limit - _OBJECT
    if id(value) in path:  # it contains itself, and its repr says `...`
        return limit - 5
    if len(value) * 3 > limit or len(path) >= _SCREEN_DEPTH:
        return 0
    path.add(id(value))
    items = chain(value, value.values()) if cls == id(dict) else value
    for item in items:
        limit = _remaining(item, limit, path)
        if limit <= 0:
            break
    path.discard(id(value))
    return limit - 2


def _bounded(value: Any, limit: int) -> str:
    """Return both ends of a repr that is too long, without computing the rest."""
    cls = id(type(value))
    if cls not in _OPEN and cls not in _TEXTS:
        return cut(_repr(value), limit)
    half = limit // 2
    head, tail = _End(half, False), _End(half, True)
    head.write(value)
    tail.write(value)
    left_out = (
        f"about {len(value) - 2 * half:,} {_TEXTS[cls]} left out"
        if cls in _TEXTS
        else f"the middle of {len(value):,} items left out"
    )
    first, last = "".join(head.pieces)[:half], "".join(reversed(tail.pieces))[-half:]
    return f"{first}\n... [{left_out}] ...\n{last}"


class _End:
    """The first `limit` characters of a repr in pieces; with `backward`, the last ones, last first.

    A piece may exceed the limit.
    """

    def __init__(self, limit: int, backward: bool) -> None:
        self.pieces: list[str] = []
        self._limit = self._remaining = limit
        self._backward = backward
        self._path: set[int] = set()

    def write(self, value: Any) -> None:
        """Add the repr of `value` up to the limit."""
        cls = id(type(value))
        if cls in _TEXTS:
            self._add(_repr(value[-self._limit :] if self._backward else value[: self._limit]))
        elif cls not in _OPEN or not value:
            self._add(_repr(value))
        elif id(value) in self._path or len(self._path) >= _SCREEN_DEPTH:
            self._add(f"{_OPEN[cls]}...{_CLOSE[cls]}")
        else:
            self._path.add(id(value))
            ends = _OPEN[cls], ",)" if cls == id(tuple) and len(value) == 1 else _CLOSE[cls]
            self._add(ends[self._backward])
            self._write_items(value)
            self._add(ends[not self._backward])
            self._path.discard(id(value))

    def _write_items(self, value: Any) -> None:
        mapping = type(value) is dict
        items = value.items() if mapping else value
        if self._backward and id(type(value)) in _ORDERED:
            items = reversed(items)
        for number, item in enumerate(items):
            if self._remaining <= 0:
                return
            if number:
                self._add(", ")
            if mapping:
                self.write(item[self._backward])
                self._add(": ")
                self.write(item[not self._backward])
            else:
                self.write(item)

    def _add(self, text: str) -> None:
        self.pieces.append(text)
        self._remaining -= len(text)
