"""The types of a command's options, from the annotations of its function.

Versions of typer keep the types of parameters in different places.
"""

from __future__ import annotations

import inspect
import types
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin


def option_types(command: Any) -> dict[str, type]:
    """Return the type of each parameter by name; of a list, the type of its items."""
    if command.callback is None:
        return {}
    signature = inspect.signature(command.callback, eval_str=True)
    return {each.name: _bare(each.annotation) for each in signature.parameters.values()}


def choices(kind: type | None) -> tuple[str, ...]:
    """Return the values that an option of this type takes; () if it takes any."""
    if kind is None or not issubclass(kind, Enum):
        return ()
    return tuple(str(each.value) for each in kind)


def _bare(annotation: Any) -> type:
    """The type without `Annotated`, `None` and `list` around it."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        (first, *_) = (each for each in get_args(annotation) if each is not type(None))
        return _bare(first)
    if get_origin(annotation) is list:
        return _bare(get_args(annotation)[0])
    return annotation if isinstance(annotation, type) else object
