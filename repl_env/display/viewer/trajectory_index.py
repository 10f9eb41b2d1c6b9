"""`TrajectoryIndex`: a row for each event of a trajectory file, with its place in the file."""

from __future__ import annotations

import threading
from typing import Any

from repl_env.display.viewer.event_rows import Row, event_row
from repl_env.display.viewer.growing_lines import GrowingLines
from repl_env.display.viewer.named_files import NamedFile

# Rows of one answer: a page makes its lists of so many in less than the time of a frame.
MAX_ROWS = 2000


class TrajectoryIndex:
    """The rows of `file`, made as they are asked for; safe to use from several threads.

    A row is that of `event_row`, with `at` and `size`: the bytes of the event's line. The header of
    the file is a row of the kind "header".
    """

    def __init__(self, file: NamedFile) -> None:
        self._lines = GrowingLines(file)
        self._rows: list[Row] = []
        self._generation = 0
        self._lock = threading.Lock()

    def rows(self, start: int, generation: int, seconds: float = 0.25) -> dict[str, Any]:
        """Return rows from number `start`, read for at most about `seconds` more.

        A page whose `generation` is another than that of the result has rows of a file that was
        replaced, and begins anew from row 0.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock:
            if start + MAX_ROWS > len(self._rows):
                self._grow(seconds)
            if generation != self._generation:
                start = 0
            rows = self._rows[start : start + MAX_ROWS]
            return {
                "generation": self._generation,
                "start": start,
                "rows": rows,
                "more": self._lines.more or start + len(rows) < len(self._rows),
                "size": self._lines.size,
            }

    def _grow(self, seconds: float) -> None:
        for at, line in self._lines.read(seconds):
            self._forget_if_replaced()
            row = {"event": "header"} if at == 0 else event_row(line)
            self._rows.append(row | {"at": at, "size": len(line)})
        self._forget_if_replaced()

    def _forget_if_replaced(self) -> None:
        if self._lines.generation != self._generation:
            self._generation = self._lines.generation
            self._rows.clear()
