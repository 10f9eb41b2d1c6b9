"""Which cells made a session's namespace what it is: the last of them."""

from __future__ import annotations

from collections import deque

# More than there are states to go back to (Sandbox(history=)), and no memory to speak of.
REMEMBERED = 1000


class CellHistory:
    """The numbers of the cells that count, oldest first; of the oldest of many only that they were.

    `add` appends one. A cell whose effects are gone is none of them.
    """

    __slots__ = ("_assigned", "_cells", "_cut", "add")

    def __init__(self) -> None:
        self._cells: deque[int] = deque(maxlen=REMEMBERED)
        self._cut = False  # whether cells before these count as well, and were forgotten
        self._assigned = False  # whether the host has set a variable before the first of all
        self.add = self._cells.append  # each cell pays for it

    def __bool__(self) -> bool:
        """Whether anything has made the namespace what it is."""
        return bool(self._cells) or self._assigned

    @property
    def last(self) -> int:
        """The number of the last cell, 0 before the first."""
        return self._cells[-1] if self._cells else 0

    @property
    def _is_cut(self) -> bool:
        return self._cut or len(self._cells) == REMEMBERED

    def assign(self) -> None:
        """The host has set a variable: there is a state before the first cell."""
        self._assigned = self._assigned or not self._cells

    def before(self, cells: int) -> int | None:
        """The cell whose state has the last `cells` undone: 0 for that before the first cell.

        None if that state is an empty namespace, -1 if nobody knows any more.

        Raises:
            ValueError: not so many cells have run.
        """
        if cells < len(self._cells):
            return self._cells[-cells - 1]
        if self._is_cut:
            return -1
        if cells > len(self._cells):
            raise ValueError(f"n={cells}, but {len(self._cells)} cells have run")
        return 0 if self._assigned else None

    def go_back(self, cell: int) -> tuple[int, int] | None:
        """Forget all after `cell`; the first and the last number of those, if there are any."""
        cut, last, first = self._is_cut and cell > 0, self.last, 0
        while self._cells and self._cells[-1] > cell:
            first = self._cells.pop()
        self._cut = cut
        if cut and not self._cells:
            self._cells.append(cell)
            first = cell + 1
        return (first, last) if first else None

    def clear(self) -> None:
        """The namespace is empty."""
        self._cells.clear()
        self._cut = self._assigned = False

    def of_branch(self) -> CellHistory:
        """That of a branch, which has all that this session has."""
        past = CellHistory()
        past._cells.extend(self._cells)
        past._cut, past._assigned = self._cut, True
        return past
