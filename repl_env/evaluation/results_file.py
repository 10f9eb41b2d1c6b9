"""The results file: one line for each finished task, appended as it finishes.

Whatever ends the process, lines that are whole stay: a line goes out in one piece when its task is
done, and a half-written last one is cut off by whoever opens the file next. A first line says what
the file is, so that no other file is ever appended to or cut.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from repl_env.common.argument_checks import as_path
from repl_env.common.line_append import append_line
from repl_env.common.private_files import PRIVATE, make_private
from repl_env.rlm.budget.budget_limits import Spent

_HEADER = b'{"type": "results", "version": 1}\n'


class ResultsError(ValueError):
    """A results file cannot be used; the message names it, and the line."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one task.

    Attributes:
        fingerprint: of the dataset's line and all settings that a result depends on.
        score: None if there is none, because something of ours failed: `error_kind` says what.
        answer: the final answer's text; None if there was none.
        seconds: of wall time that the task took; `time`: when it ended, in seconds since the epoch.
    """

    id: str
    fingerprint: str
    kind: str | None
    score: float | None
    answer: str | None
    stop_reason: str | None
    error_kind: str | None
    error: str | None
    seconds: float
    time: float
    spent: Spent = field(default_factory=Spent)


class ResultsFile:
    """A results file, open for one evaluation at a time.

    Args:
        path: made if it is not there.
        fresh: forget what is in it.

    Attributes:
        earlier: the last result of each id and fingerprint.

    Raises:
        ResultsError: it is no results file, is damaged, is in use, or cannot be opened.
        OSError: it cannot be begun, for want of space.
    """

    def __init__(self, path: str | os.PathLike[str], *, fresh: bool = False) -> None:
        self.path = path = as_path(path, "path")
        self.earlier: dict[tuple[str, str], Result] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror or error}") from error
        try:
            self._begin(fresh)
            # A file of another kind was refused before this, and stays as it was.
            make_private(self._file)
        except BaseException:
            self.close()
            raise

    def append(self, result: Result) -> None:
        """Write a result; when this returns, the system has it.

        Raises:
            OSError: it cannot be written, and nothing of it is in the file.
        """
        self._write({"type": "result", **asdict(result)})

    def note(self, settings: dict[str, Any]) -> None:
        """Write down with which settings what follows is made; nobody reads it but people."""
        self._write({"type": "begin", **settings})

    def close(self) -> None:
        """Close the file, which frees it for others."""
        os.close(self._file)

    def _begin(self, fresh: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ResultsError(f"{self.path} is not a regular file")
        self._lock()
        with open(self._file, "rb", closefd=False) as file:
            lines = file.read().splitlines(keepends=True)
        # A header of which only the beginning was written is nobody else's file either.
        if lines and not _HEADER.startswith(lines[0]):
            raise ResultsError(f"{self.path} is not a file of results of `repl-env eval`")
        if lines and not lines[-1].endswith(b"\n"):
            half = lines.pop()
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(half))
        if fresh:
            lines = []
            os.ftruncate(self._file, 0)
        if not lines:
            append_line(self._file, _HEADER)
        for number, line in enumerate(lines[1:], 2):
            if (result := _read(self.path, number, line)) is not None:
                self.earlier[result.id, result.fingerprint] = result

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsError(f"{self.path} is in use by another evaluation") from error

    def _write(self, record: dict[str, Any]) -> None:
        append_line(self._file, json.dumps(record).encode("ascii") + b"\n")


def _read(path: Path, number: int, line: bytes) -> Result | None:
    """The result in a line; None if the line is of another type."""
    try:
        record = json.loads(line)
        if record.pop("type") != "result":
            return None
        spent = Spent(**record.pop("spent"))
        result = Result(**record, spent=spent)
        for each in fields(result):
            _check(each.name, getattr(result, each.name))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultsError(f"{path}, line {number} is damaged: {error}") from error
    return result


_NUMBERS = frozenset({"score", "seconds", "time"})
_OPTIONAL = frozenset({"kind", "score", "answer", "stop_reason", "error_kind", "error"})


def _check(name: str, value: object) -> None:
    if name == "spent" or (value is None and name in _OPTIONAL):
        return
    if not isinstance(value, (int, float) if name in _NUMBERS else str):
        raise TypeError(f'"{name}" is {type(value).__name__}')
