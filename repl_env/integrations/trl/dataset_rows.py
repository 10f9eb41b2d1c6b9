"""Rows of a dataset as the arguments of resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Arguments of a reset that a dataset may have a column for. Keys of models are none.
ARGUMENTS = (
    "context", "contexts", "files", "task_prompt", "expected_answer", "answer_schema",
    "max_iterations", "seed", "episode_id",
)  # fmt: skip


def columns_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """The argument of a reset that each column is for: `given`, besides those of their own name.

    Raises:
        TypeError, ValueError: naming the argument `columns`.
    """
    if not isinstance(given, Mapping | None):
        raise TypeError(f"columns must be a mapping, not {type(given).__name__}")
    columns = dict(given or {})
    for column, argument in columns.items():
        if argument not in ARGUMENTS:
            names = ", ".join(ARGUMENTS)
            raise ValueError(f"columns: {column!r} is for {argument!r}, which is none of {names}")
    renamed = set(columns.values())
    return columns | {
        name: name for name in ARGUMENTS if name not in renamed and name not in columns
    }


def request_of(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the reset for one row. A column that is None is not given.

    A dataset has one set of columns, so that a `contexts` or `files` of several rows has a key for
    each name that any of the rows has; the keys without a value are left out.
    """
    request = {
        argument: value
        for column, argument in columns.items()
        if (value := row.get(column)) is not None
    }
    for name in ("contexts", "files"):
        if isinstance(request.get(name), Mapping):
            request[name] = {k: v for k, v in request[name].items() if v is not None}
    return request
