"""The table of a session's waiting copies: one page that its worker writes and its init reads.

A row is the process id of a copy and the number of the cell after which it was made, the oldest
first. What the page says is the word of code that may be hostile: init takes no more from it than
which of the session's own processes is to go on, and looks whether there is such a process.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

Row = tuple[int, int]

_COUNT = struct.Struct("=I")
_ROW = struct.Struct("=iq")
MOST_STATES = (mmap.PAGESIZE - _COUNT.size) // _ROW.size


class States:
    """Shared with every process that is forked after it was made."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, rows: Sequence[Row]) -> None:
        """Replace the table. The count comes last: who reads meanwhile sees whole rows only."""
        _COUNT.pack_into(self._page, 0, 0)
        for index, row in enumerate(rows):
            _ROW.pack_into(self._page, _COUNT.size + index * _ROW.size, *row)
        _COUNT.pack_into(self._page, 0, len(rows))

    def read(self) -> list[Row]:
        """The rows, none of which need be true."""
        count = min(_COUNT.unpack_from(self._page)[0], MOST_STATES)
        return [_ROW.unpack_from(self._page, _COUNT.size + i * _ROW.size) for i in range(count)]
