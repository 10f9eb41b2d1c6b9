"""`_out`: the full output of earlier cells, read from the host page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The host functions behind it; names that users cannot give to their own functions.
LENGTH = "_output_length"
TEXT = "_output_text"

# Characters that the host returns at most at once; longer slices take several reads.
PAGE = 1 << 18


class CellOutput:
    """Output of one cell to one stream. Slices are read on demand."""

    def __init__(self, call: Callable[..., Any], cell: int, stream: str) -> None:
        self._call = call
        self._cell = cell
        self._stream = stream
        self._length: int = call(LENGTH, (cell, stream), {})

    @property
    def stderr(self) -> CellOutput:
        """Output of the same cell to standard error."""
        return CellOutput(self._call, self._cell, "stderr")

    def page(self, number: int, size: int = 8192) -> str:
        """Return page `number`, from 0, of pages of `size` characters."""
        return self[number * size : (number + 1) * size]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> str:
        if not isinstance(index, slice):
            index = range(self._length)[index]
            index = slice(index, index + 1)
        start, stop, step = index.indices(self._length)
        if step < 0:
            return str(self)[index]
        pages = [
            self._call(TEXT, (self._cell, self._stream, place, min(place + PAGE, stop)), {})
            for place in range(start, stop, PAGE)
        ]
        return "".join(pages)[::step]

    def __str__(self) -> str:
        return self[:]

    def __contains__(self, text: str) -> bool:
        return text in str(self)

    def __repr__(self) -> str:
        name = f"_out[{self._cell}]"
        return (
            f"<{self._stream} of cell {self._cell}: {self._length:,} characters; "
            f"read it with {name}[:2000], {name}.page(1) or str({name})>"
        )


class OutputHistory:
    """`_out[n]` is the output of cell n, `_out[-1]` that of the previous cell."""

    def __init__(self, call: Callable[..., Any], running: Callable[[], int]) -> None:
        self._call = call
        self._running = running

    def __getitem__(self, cell: int) -> CellOutput:
        number = self._running() + cell if cell < 0 else cell
        if not 0 < number < self._running():
            raise IndexError(f"no cell {cell} has ended; cells count from 1")
        return CellOutput(self._call, number, "stdout")

    def __repr__(self) -> str:
        return "<the output of earlier cells: _out[1], _out[-1], …>"
