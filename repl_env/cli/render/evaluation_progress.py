"""The progress of an evaluation: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .terminal_text import one_line
from .tree_drawing import duration

if TYPE_CHECKING:
    from types import TracebackType

    from repl_env.evaluation import Evaluation, Result

_LINES = 20  # of an evaluation that takes little time
_LONGEST_SILENCE_S = 30.0  # between lines, as far as tasks end
_MOST_ERROR = 200


def evaluation_progress(
    evaluation: Evaluation, console: Console | None = None
) -> AbstractContextManager[None]:
    """Return the display for `console`, by default stderr: a bar on a terminal, else lines."""
    console = console or Console(stderr=True)
    if console.is_terminal:
        return EvaluationBar(evaluation, console)
    return EvaluationLines(evaluation, console)


class ScoreCount:
    """The scores of `evaluation` so far, with those of earlier calls, and the failures of this."""

    def __init__(self, evaluation: Evaluation) -> None:
        scores = [each.score for each in evaluation.done.values() if each.score is not None]
        self.scored, self._sum, self.failed = len(scores), sum(scores), 0

    def add(self, result: Result) -> None:
        """Count a result."""
        if result.score is None:
            self.failed += 1
        else:
            self.scored, self._sum = self.scored + 1, self._sum + result.score

    @property
    def mean(self) -> str:
        """Return the mean score in words, "" without scores."""
        return f"score {self._sum / self.scored:.3f}" if self.scored else ""


class EvaluationBar:
    """A bar over all tasks of `evaluation`, with the mean so far; a context manager."""

    def __init__(self, evaluation: Evaluation, console: Console) -> None:
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._count = ScoreCount(evaluation)
        self._bar = self._progress.add_task(self._text(), total=len(evaluation.dataset.entries))
        evaluation.on_result = self._show

    def __enter__(self) -> None:
        self._progress.start()
        self._progress.update(self._bar, completed=self._count.scored)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def _show(self, result: Result) -> None:
        self._count.add(result)
        self._progress.update(self._bar, completed=self._count.scored, description=self._text())

    def _text(self) -> str:
        failed = self._count.failed
        return f"{self._count.mean} [red]{failed} failed[/]" if failed else self._count.mean


class EvaluationLines:
    """A line for each twentieth of the tasks, or half a minute; a context manager.

    The first failure of each kind has a line at once, because a wrong key or address makes every
    task fail.
    """

    def __init__(self, evaluation: Evaluation, console: Console) -> None:
        self._console = console
        self._count = ScoreCount(evaluation)
        self._tasks = len(evaluation.dataset.entries)
        self._ended = 0  # in this call
        self._left = len(evaluation.missing)
        self._kinds: set[str | None] = set()
        self._started = self._printed_at = time.monotonic()
        self._printed = 0
        evaluation.on_result = self._show

    def __enter__(self) -> None:
        """Nothing is open."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def _show(self, result: Result) -> None:
        self._count.add(result)
        self._ended += 1
        if result.score is None and result.error_kind not in self._kinds:
            self._kinds.add(result.error_kind)
            self._print(f"{one_line(result.id, 80)} has no score: {_why(result)}")
        now = time.monotonic()
        if self._is_due() or now - self._printed_at >= _LONGEST_SILENCE_S:
            self._printed, self._printed_at = self._ended, now
            self._print(self._text(now))

    def _is_due(self) -> bool:
        """Return whether a twentieth of the tasks ended since the last line, or all."""
        return self._ended == self._left or (self._ended - self._printed) * _LINES >= self._left

    def _text(self, now: float) -> str:
        failed = f"{self._count.failed} failed" if self._count.failed else ""
        parts = (self._count.mean, failed, duration(now - self._started))
        so_far = ", ".join(part for part in parts if part)
        return f"{self._count.scored} of {self._tasks} tasks: {so_far}"

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _why(result: Result) -> str:
    return one_line(f"{result.error_kind}: {result.error or 'no message'}", _MOST_ERROR)
