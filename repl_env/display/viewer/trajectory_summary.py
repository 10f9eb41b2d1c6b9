"""`TrajectorySummary`: the root runs of a trajectory file, as a list of runs shows them.

Only the lines that begin or end a root are parsed, so that a file of 200 MB takes a fraction of a
second.
"""

from __future__ import annotations

import re
from typing import Any, Final

from repl_env.display.viewer.event_rows import Row, event_row
from repl_env.display.viewer.growing_lines import GrowingLines
from repl_env.display.viewer.named_files import NamedFile

# The writer puts the kind first. A line of another order costs a look at all of it, and no more.
_ENDS: Final = re.compile(rb'"event":\s*"run_(?:started|ended)"')
_HEAD: Final = 200


class TrajectorySummary:
    """The roots of `file` as far as it was read."""

    def __init__(self, file: NamedFile) -> None:
        self._lines = GrowingLines(file)
        self._generation = 0
        self._roots: dict[str, Row] = {}
        self._events = 0

    @property
    def more(self) -> bool:
        """True if there are lines that were not read yet."""
        return self._lines.more

    def read(self, seconds: float) -> dict[str, Any]:
        """Read for about `seconds`, and return the known facts.

        Raises:
            OSError: the file cannot be read.
        """
        for at, line in self._lines.read(seconds):
            self._forget_if_replaced()
            if at > 0:
                self._take(line)
        self._forget_if_replaced()
        return {
            "size": self._lines.size,
            "events": self._events,
            "roots": list(self._roots.values()),
        }

    def _forget_if_replaced(self) -> None:
        if self._lines.generation != self._generation:
            self._generation = self._lines.generation
            self._roots, self._events = {}, 0

    def _take(self, line: bytes) -> None:
        self._events += 1
        if _ENDS.search(line[:_HEAD]) is None:
            return
        row = event_row(line)
        run = row.get("run")
        if not isinstance(run, str) or "." in run:
            return
        known = self._roots.setdefault(run, {"run": run, "done": False})
        if row["event"] == "run_started":
            fields = ("model", "task", "group", "time")
            known |= {"question": row.get("text")} | {name: row.get(name) for name in fields}
        else:
            ended = {name: row.get(name) for name in _ENDED}
            known |= {"answer": row.get("text"), "done": True, **ended}


_ENDED: Final = (
    "stop_reason",
    "error_kind",
    "reward",
    "task_reward",
    "iterations",
    "seconds",
    "total",
)
