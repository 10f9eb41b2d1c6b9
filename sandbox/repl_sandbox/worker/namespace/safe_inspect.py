"""Inspection of an object without running any code of the user's.

Ordinary attribute access, `isinstance`, `len` and `repr` run methods that a class may define. The
functions here read through the interpreter's own descriptors, which a class cannot replace, and
compare classes by identity, because a metaclass may define `__eq__` and `__hash__`. The only
exception is a class whose own dictionary has keys with their own `__eq__`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final, cast

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
