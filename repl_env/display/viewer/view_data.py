"""`ViewData`: the data of a viewer's pages, from the named files."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from typing import Any, Final

from repl_env.display.viewer.evaluation_data import comparison_data, evaluation_data, results_of
from repl_env.display.viewer.growing_lines import LONGEST_LINE
from repl_env.display.viewer.named_files import MAX_FILES, NamedFile, NamedFiles
from repl_env.display.viewer.trajectory_index import TrajectoryIndex
from repl_env.display.viewer.trajectory_summary import TrajectorySummary
from repl_env.rlm.trajectory.event_codec import FORMAT

_OPEN: Final = 8  # indexes that are kept: those of pages that are open
_HEADER: Final = 2**20  # bytes of a first line; contexts in it have 64 KiB
_SECONDS: Final = 0.3  # of reading for one answer, so that a page soon shows something


def kind_of(file: NamedFile) -> str:
    """Return "trajectory", "results", or "other", by the first line; OSError if unreadable."""
    with file.open() as opened:
        line = opened.readline(_HEADER)
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return "other"
    if not isinstance(header, dict):
        return "other"
    if header.get("format") == FORMAT:
        return "trajectory"
    return "results" if header.get("type") == "results" else "other"


class ViewData:
    """Lists, rows, bytes and evaluations of `files`; safe to use from several threads.

    A method that takes the `id` of a file raises KeyError for an unknown one, OSError for one that
    cannot be read, and ValueError for one that is damaged.
    """

    def __init__(self, files: NamedFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._summaries: dict[str, TrajectorySummary] = {}
        self._listed: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}
        self._indexes: OrderedDict[str, TrajectoryIndex] = OrderedDict()

    def listing(self) -> dict[str, Any]:
        """Return all files with what is known of them; "more" while there is more to read.

        "full": there may be files beyond the number that is listed.
        """
        until = time.monotonic() + _SECONDS
        with self._lock:
            rows = [self._row(file, until) for file in self._files.files()]
        shown = [row for row in rows if row["kind"] != "other"]
        more = any(row.get("more") for row in shown)
        return {"files": shown, "more": more, "full": len(rows) == MAX_FILES}

    def rows(self, identifier: str, start: int, generation: int) -> dict[str, Any]:
        """Return rows of a trajectory from number `start`."""
        file = self._files.get(identifier)
        with self._lock:
            index = self._indexes.pop(identifier, None) or TrajectoryIndex(file)
            self._indexes[identifier] = index
            while len(self._indexes) > _OPEN:
                self._indexes.popitem(last=False)
        return index.rows(start, generation)

    def part(self, identifier: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from `start` up to `stop`."""
        with self._files.get(identifier).open() as file:
            file.seek(start)
            return file.read(min(stop - start, LONGEST_LINE))

    def evaluation(self, identifier: str) -> dict[str, Any]:
        """Return an evaluation; a task whose trajectory is among the files has its id as "run"."""
        file = self._files.get(identifier)
        results = results_of(file)
        data = evaluation_data(results)
        ids = {each.address: each.id for each in self._files.files()}
        folder = os.path.dirname(file.address)
        for task, result in zip(data["tasks"], results, strict=True):
            if result.trajectory is not None:
                task["run"] = ids.get(os.path.normpath(os.path.join(folder, result.trajectory)))
        return data

    def comparison(self, before: str, after: str) -> dict[str, Any]:
        """Return the comparison of two evaluations."""
        first, second = self._files.get(before), self._files.get(after)
        return comparison_data(results_of(first), results_of(second))

    def _row(self, file: NamedFile, until: float) -> dict[str, Any]:
        """Return the row of a file, anew if the file is not the one of the last time."""
        row: dict[str, Any] = {"id": file.id, "name": file.name}
        try:
            signature = file.signature()
            before, known = self._listed.get(file.id, (None, row))
            if before == signature and not known.get("more"):
                return known
            row |= self._content(file, until)
        except (OSError, ValueError) as error:
            return row | {"kind": "broken", "error": str(error)}
        self._listed[file.id] = signature, row
        return row

    def _content(self, file: NamedFile, until: float) -> dict[str, Any]:
        kind = kind_of(file)
        if kind == "trajectory":
            summary = self._summaries.setdefault(file.id, TrajectorySummary(file))
            content = summary.read(until - time.monotonic())
            return {"kind": kind, **content, "more": summary.more}
        if kind == "results":
            return {"kind": kind, "scores": evaluation_data(results_of(file))["scores"]}
        return {"kind": kind}
