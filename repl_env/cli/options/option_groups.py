"""`with_option_groups`: options that commands share, as dataclasses in the signatures of commands.

A parameter whose annotation is a dataclass stands for an option for each field. A field whose
annotation is a dataclass stands for the options of that one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints


def with_option_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of its groups, which the function gets as objects."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in groups:
            parameters += _options(groups[each.name])
        else:
            # By keyword: options without a default may follow others.
            parameters.append(
                each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[each.name])
            )

    @wraps(function)
    def command(**values: Any) -> None:
        made = {name: _taken_from(values, group) for name, group in groups.items()}
        function(**values, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _options(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = hints[field.name]
        if is_dataclass(hint):
            yield from _options(hint)
        else:
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _taken_from(values: dict[str, Any], group: Any) -> Any:
    """Return the group made of its options, which are removed from `values`."""
    hints = get_type_hints(group, include_extras=True)
    made = {
        field.name: _taken_from(values, hints[field.name])
        if is_dataclass(hints[field.name])
        else values.pop(field.name)
        for field in fields(group)
    }
    return group(**made)
