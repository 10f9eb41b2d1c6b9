"""Steps that are calls of the C library, as data: what makes them needs no line of Python.

Covers: calls whose arguments are known before there is a session. `quiet_init` makes them without
the interpreter; called, they are made one after the other from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from . import libc

Row: TypeAlias = tuple[str | int, ...]  # the name of a function, and its arguments


class Numbered(Protocol):
    """What a step is told of its session."""

    slot: int | None


@dataclass(frozen=True, slots=True)
class Calls:
    """A step; `of_own_ids`: only where the host may assign the session uids of its own."""

    rows: Sequence[Row]
    of_own_ids: bool = False

    def __call__(self, session: Numbered) -> None:
        """Make them.

        Raises:
            OSError: one has failed.
        """
        if self.of_own_ids and session.slot is None:
            return
        for name, *arguments in self.rows:
            libc.call(str(name), *map(int, arguments))
