"""Steps that are calls of the C library, as data: what makes them needs no line of Python.

Covers: calls whose arguments are known before there is a session. `quiet_init` makes them without
the interpreter; called, they are made one after the other from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from . import libc

# The name of a function, and its arguments; bytes are passed by their address.
Row: TypeAlias = tuple[str | int | bytes, ...]


class Numbered(Protocol):
    """What a step is told of its session."""

    slot: int | None


@dataclass(frozen=True, slots=True)
class Calls:
    """A step; `of_own_ids`: only where the host may assign the session uids of its own."""

    rows: Sequence[Row]
    of_own_ids: bool = False
    # Looked up once: in a forked process the search through all libraries copies some 60 pages.
    _bound: Sequence[partial[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bound = [libc.bound(str(name), *map(_passed, rest)) for name, *rest in self.rows]
        object.__setattr__(self, "_bound", bound)

    def __call__(self, session: Numbered) -> None:
        """Make them.

        Raises:
            OSError: one has failed.
        """
        if self.of_own_ids and session.slot is None:
            return
        for call, row in zip(self._bound, self.rows, strict=True):
            if call() == -1:
                libc.fail(str(row[0]))


def _passed(argument: str | int | bytes) -> int | bytes:
    if isinstance(argument, str):
        raise TypeError(f"{argument!r} is an argument that is not known yet")
    return argument
