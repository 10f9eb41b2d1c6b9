"""`set_module`: the module that documents a class or function, as its `__module__`.

Tracebacks, reprs and pickles name the documented path, which stays when files move. A session
resolves the path too, from modules that the worker has loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ForwardRef, TypeVar

T = TypeVar("T")


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets `__module__` to `module`, which exports the object.

    It is the outermost decorator: `dataclass` evaluates annotations in the defining module, which
    `__module__` names until then. `typing.get_type_hints` does so as well, later; the annotations
    of a class therefore keep the defining module.
    """

    def decorate(decorated: T) -> T:
        if isinstance(decorated, type) and (annotations := decorated.__annotations__):
            decorated.__annotations__ = {
                name: _reference(value, decorated.__module__) if isinstance(value, str) else value
                for name, value in annotations.items()
            }
        decorated.__module__ = module
        return decorated

    return decorate


def _reference(annotation: str, module: str) -> ForwardRef:
    return ForwardRef(annotation, is_argument=False, module=module, is_class=True)
