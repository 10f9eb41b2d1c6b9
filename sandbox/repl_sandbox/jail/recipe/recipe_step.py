"""`Step`: one row of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...native.steps import Rows
from ..session_jail import Jail


class Step(NamedTuple):
    """One row of a recipe: its system calls, or a function if it needs more."""

    name: str
    reason: str
    calls: Callable[[Jail], Rows] | None
    function: Callable[[Jail], None] | None = None
