"""How far an evaluation is, as a bar on the terminal; nothing where there is no terminal."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from types import TracebackType

    from repl_env.evaluation import Evaluation, Result


class EvaluationBar:
    """A bar over all tasks of `evaluation`, with the mean so far; a context manager."""

    def __init__(self, evaluation: Evaluation, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        scores = [each.score for each in evaluation.done.values() if each.score is not None]
        self._count, self._sum, self._failed = len(scores), sum(scores), 0
        self._bar = self._progress.add_task(self._text(), total=len(evaluation.dataset.entries))
        evaluation.shown = self._show

    def __enter__(self) -> None:
        self._progress.start()
        self._progress.update(self._bar, completed=self._count)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def _show(self, result: Result) -> None:
        if result.score is None:
            self._failed += 1
        else:
            self._count, self._sum = self._count + 1, self._sum + result.score
        self._progress.update(self._bar, completed=self._count, description=self._text())

    def _text(self) -> str:
        mean = f"score {self._sum / self._count:.3f}" if self._count else ""
        return f"{mean} [red]{self._failed} failed[/]" if self._failed else mean
