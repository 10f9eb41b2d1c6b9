"""`CellHistory`: the latest cells that made a session's namespace."""

from __future__ import annotations

from collections import deque

# More than there are snapshots to return to (Sandbox(history=)); the memory is negligible.
REMEMBERED = 1000


class CellHistory:
    """The numbers of the cells whose effects are in the namespace, oldest first.

    `add` appends one. The numbers of the oldest of many cells are forgotten.
    """

    __slots__ = ("_assigned", "_cells", "_cut", "add")

    def __init__(self) -> None:
        self._cells: deque[int] = deque(maxlen=REMEMBERED)
        self._cut = False  # whether earlier cells count as well, and were forgotten
        self._assigned = False  # whether the host set a variable before the first cell
        self.add = self._cells.append  # an attribute, for speed: each cell calls it

    def __bool__(self) -> bool:
        """Return whether the namespace differs from an empty one."""
        return bool(self._cells) or self._assigned

    @property
    def last(self) -> int:
        """The number of the last cell, 0 before the first."""
        return self._cells[-1] if self._cells else 0

    @property
    def _is_cut(self) -> bool:
        return self._cut or len(self._cells) == REMEMBERED

    def assign(self) -> None:
        """Note that the host set a variable: there is a state before the first cell."""
        self._assigned = self._assigned or not self._cells

    def before(self, cells: int) -> int | None:
        """The cell after which the namespace was as before the last `cells` cells; 0: before the
        first cell.

        None if the namespace was empty then, -1 if the number is forgotten.

        Raises:
            ValueError: fewer cells have run.
        """
        if cells < len(self._cells):
            return self._cells[-cells - 1]
        if self._is_cut:
            return -1
        if cells > len(self._cells):
            raise ValueError(f"n={cells}, but {len(self._cells)} cells have run")
        return 0 if self._assigned else None

    def go_back(self, cell: int) -> tuple[int, int] | None:
        """Forget all cells after `cell`; return the first and the last number of those, if any."""
        cut, last, first = self._is_cut and cell > 0, self.last, 0
        while self._cells and self._cells[-1] > cell:
            first = self._cells.pop()
        self._cut = cut
        if cut and not self._cells:
            self._cells.append(cell)
            first = cell + 1
        return (first, last) if first else None

    def clear(self) -> None:
        """Note that the namespace is empty."""
        self._cells.clear()
        self._cut = self._assigned = False

    def of_branch(self) -> CellHistory:
        """A copy for a branch, which starts with the same namespace."""
        past = CellHistory()
        past._cells.extend(self._cells)
        past._cut, past._assigned = self._cut, True
        return past
