"""Expected contents of a session of the soak, kept by the host, cell by cell."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

# The number of kept entries of the list that cells append to.
KEPT_ITEMS = 50


@dataclass(slots=True)
class State:
    """Variables and files of a session after some cell."""

    variables: dict[str, object] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, number: int) -> None:
        """Apply the effect of the cell of `steps.adding`."""
        items = self.variables["items"]
        assert isinstance(items, list)
        total = self.variables["total"]
        assert isinstance(total, int)
        self.variables["total"] = total + number
        self.variables["items"] = [*items, number][-KEPT_ITEMS:]
        self.files["log"] = self.files["log"] + b"%d\n" % number


class Model:
    """The states of one session, the latest last; `history` as in Sandbox(history=)."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.restart()

    def restart(self) -> None:
        """The session is as before its first cell, except for variables set by the host."""
        self._states = [State()]
        self._copies = self._copies_before = 0

    @property
    def state(self) -> State:
        """The session's current state, which the host may change, for example by adding a file."""
        return self._states[-1]

    @property
    def cells(self) -> int:
        """The number of cells that made the state."""
        return len(self._states) - 1

    def assign(self, name: str, value: object) -> None:
        """The host sets a variable."""
        self.state.variables[name] = value

    def cell(self) -> State:
        """A cell ran to its end; its state, for the caller to change as the cell did."""
        self._copies_before = self._copies
        self._states.append(copy.deepcopy(self.state))
        self._copies = min(self._copies + 1, self.history + 1)
        return self.state

    def lose(self) -> None:
        """The last cell is undone, because the worker ended before its snapshot was taken."""
        del self._states[-1]
        self._copies = self._copies_before

    def can_go_back(self, cells: int) -> bool:
        """Whether rollback(cells) must succeed; where it need not, it must change nothing."""
        return cells < self._copies or self._to_nothing(cells)

    def go_back(self, cells: int) -> None:
        """The last `cells` cells are undone."""
        if self._to_nothing(cells):
            del self._states[1:]
            self._copies = 0
            return
        del self._states[len(self._states) - cells :]
        self._copies -= cells

    def _to_nothing(self, cells: int) -> bool:
        """Roll back to before the first cell: no snapshot is needed, because the host sends its
        variables again.
        """
        return cells == self.cells


def difference(held: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """A text if `held` differs from `wanted`."""
    names = sorted(held.keys() | wanted.keys())
    return "; ".join(
        f"{name}: {held.get(name, 'nothing')!r:.200}, not {wanted.get(name, 'nothing')!r:.200}"
        for name in names
        if held.get(name, names) != wanted.get(name, names)
    )
