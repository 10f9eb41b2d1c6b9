"""The results file: one line for each finished task, appended as it finishes.

Whatever ends the process, lines that are whole stay: a line goes out in one piece when its task is
done, and a half-written last one is cut off by whoever opens the file next. A first line says what
the file is, so that no other file is ever appended to or cut.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_env.common.argument_checks import as_path
from repl_env.common.displayed import Displayed
from repl_env.common.line_append import append_line
from repl_env.common.private_files import PRIVATE, make_private
from repl_env.common.set_module import set_module
from repl_env.rlm.budget.budget_limits import Spent

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

_HEADER = b'{"type": "results", "version": 1}\n'


@set_module("repl_env.evaluation")
class ResultsError(ValueError):
    """A results file cannot be used; the message names it, and the line."""


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class Result(Displayed):
    """Result of one task.

    Attributes:
        fingerprint: of the dataset's line and all settings that a result depends on.
        score: None if there is none, because something of ours failed: `error_kind` says what.
        answer: the final answer's text; None if there was none.
        error: why there is no score, or no answer, in words.
        seconds: of wall time that the task took; `time`: when it ended, in seconds since the epoch.
        question, expected: of the task; the beginning of a long question. None in files of versions
            that did not write them.
        trajectory: the path of the run's trajectory, relative to the folder of the results file;
            None if none was written.
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
    question: str | None = None
    expected: JSON = None
    trajectory: str | None = None


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class RecordedResults(Displayed):
    """The contents of a results file.

    Attributes:
        results: the last result of each task, in the order of the file.
        settings: the settings with which these results were made; usually one. `model` is among
            them, if a model was evaluated.
    """

    path: Path
    results: tuple[Result, ...]
    settings: tuple[Mapping[str, Any], ...]

    def trajectory(self, result: Result) -> Path | None:
        """The path of the trajectory of `result`; None if none was written."""
        return None if result.trajectory is None else self.path.parent / result.trajectory


@set_module("repl_env.evaluation")
def read_results(path: str | os.PathLike[str]) -> RecordedResults:
    """Read a results file, also one that an evaluation is writing.

    Raises:
        ResultsError: it is no results file, is damaged, or cannot be read.
    """
    path = as_path(path, "path")
    try:
        with path.open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):  # may have no end
                raise ResultsError(f"{path} is not a regular file")
            content = file.read()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    return parse_results(content, path)


def parse_results(content: bytes, path: Path) -> RecordedResults:
    """Return the results in the content of a results file; `path` is for errors alone.

    Raises:
        ResultsError: as of `read_results`.
    """
    lines = content.splitlines(keepends=True)
    if not lines or lines[0] != _HEADER:
        raise ResultsError(_not_results(path))
    if not lines[-1].endswith(b"\n"):
        lines.pop()
    found: dict[str, tuple[Result, Mapping[str, Any]]] = {}
    settings: Mapping[str, Any] = {}
    for number, line in enumerate(lines[1:], 2):
        if (read := _read(path, number, line)) is not None:
            found[read.id] = read, settings
        elif (begun := _settings(path, number, line)) is not None:
            settings = begun
    used: list[Mapping[str, Any]] = []
    for _, made_with in found.values():
        if made_with not in used:
            used.append(made_with)
    return RecordedResults(path, tuple(each for each, _ in found.values()), tuple(used))


@set_module("repl_env.evaluation")
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
        # Not `asdict` of the whole: it copies `expected`, and ends at half the depth that JSON has.
        record = {each.name: getattr(result, each.name) for each in fields(result)}
        self._write({"type": "result", **record, "spent": asdict(result.spent)})

    def note(self, settings: dict[str, Any]) -> None:
        """Write down with which settings the results that follow are made."""
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
            raise ResultsError(f"{_not_results(self.path)}; name another file")
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


def _not_results(path: Path) -> str:
    return f"{path} is not a file of results of `repl-env eval`"


def _settings(path: Path, number: int, line: bytes) -> Mapping[str, Any] | None:
    """The settings in a line that begins an evaluation; None if the line is of another type."""
    record = json.loads(line)
    if record["type"] != "begin":
        return None
    settings = record.get("settings") or {}
    if not isinstance(settings, dict):
        raise ResultsError(f'{path}, line {number} is damaged: "settings" is no object')
    return settings


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
        for each in fields(spent):
            _check_number(each.name, getattr(spent, each.name))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultsError(f"{path}, line {number} is damaged: {error}") from error
    return result


_NUMBERS = frozenset({"score", "seconds", "time"})
_OPTIONAL = frozenset(
    {"kind", "score", "answer", "stop_reason", "error_kind", "error", "question", "trajectory"}
)
_ANYTHING = frozenset({"spent", "expected"})


def _check(name: str, value: object) -> None:
    if name in _ANYTHING or (value is None and name in _OPTIONAL):
        return
    if name in _NUMBERS:
        _check_number(name, value)
    elif not isinstance(value, str):
        raise TypeError(f'"{name}" is {type(value).__name__}')


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(f'"{name}" is {type(value).__name__}')
    if not math.isfinite(value):
        raise ValueError(f'"{name}" is {value}')
