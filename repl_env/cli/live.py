"""Displays of commands, while they run and when they end: trees of runs, evaluations.

The display of runs is made from events alone (`repl_env.rlm.model_call`): `Progress.on_event` is an
`EventHandler`. It shows the first line of questions, prompts and code, without terminal control
sequences.
"""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import typer
from rich.console import Console, ConsoleOptions, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as ProgressBars,
)

from repl_env.cli.model_options import refusal_text
from repl_env.cli.options import ExitStatus
from repl_env.cli.tables import harmless, json_line, one_line
from repl_env.cli.trees import RunTotals, RunTree, amounts, cell_block, duration, exact, picture
from repl_env.common.values import visible
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.rlm.budget import Budget, Price, Spent
from repl_env.rlm.model_call import AnyEvent, CellRan, ModelReplied, RunEnded, RunStarted

if TYPE_CHECKING:
    from pathlib import Path

    from repl_env.evaluation import Evaluation, Result


# The progress of an evaluation: a bar on a terminal, plain lines elsewhere.

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
        self._progress = ProgressBars(
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


# A screen of text; and some room for what stood there before.
_MOST_LINES = 30
_KEEP_LINES = 4


class Progress(Protocol):
    """Shows a tree of runs while it is entered."""

    tree: RunTree

    def on_event(self, event: AnyEvent) -> None:
        """Add an event, from any thread; never waits for a terminal to draw."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def progress(
    console: Console | None,
    budget: Budget | None = None,
    prices: Mapping[str, Price] | None = None,
    *,
    verbose: bool = False,
) -> Progress:
    """Return the display for `console`: live on a terminal, else lines; silent for None.

    `verbose`: lines with code, output and errors of each cell, also on a terminal.
    """
    tree = RunTree(prices)
    if console is None:
        return SilentProgress(tree)
    if console.is_terminal and not verbose:
        return LiveTreeDisplay(console, tree, budget)
    return ProgressLines(console, tree, verbose=verbose)


class LiveTreeDisplay:
    """A picture of the tree, drawn several times a second, and removed at the end."""

    def __init__(self, console: Console, tree: RunTree, budget: Budget | None = None) -> None:
        self.tree = tree
        self._budget = budget
        self._lock = threading.Lock()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def on_event(self, event: AnyEvent) -> None:
        """Add an event to the next picture."""
        with self._lock:
            self.tree.feed(event)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Group]:
        height = max(_KEEP_LINES, min(console.height - _KEEP_LINES, _MOST_LINES))
        with self._lock:
            lines = picture(self.tree, height, options.max_width, time.time(), self._budget)
        yield Group(*lines)

    def __enter__(self) -> Self:
        self._live.start(refresh=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()


class SilentProgress:
    """Keeps count of the tree and shows nothing."""

    def __init__(self, tree: RunTree) -> None:
        self.tree = tree
        self.on_event = tree.feed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""


class ProgressLines:
    """One line for each beginning, turn and end of a run, which stays on the terminal.

    Turns are those of the root and its children, so that a wide tree stays readable.
    `verbose`: with code, output and errors of the cells, and the replies that ran no code.
    """

    def __init__(self, console: Console, tree: RunTree, *, verbose: bool = False) -> None:
        self.tree = tree
        self._console = console
        self._verbose = verbose
        self._replies: dict[str, str] = {}  # by run: of turns that have run no code so far
        self._lock = threading.Lock()

    def on_event(self, event: AnyEvent) -> None:
        """Add an event, and print its line if it has one."""
        with self._lock:
            self.tree.feed(event)
            if self._verbose and event.run.count(".") <= 1:
                self._show_cells(event)
            if (line := line_of(event, self.tree)) is not None:
                self._print(line)

    def _show_cells(self, event: AnyEvent) -> None:
        if isinstance(event, ModelReplied | RunEnded) and event.run in self._replies:
            self._print(f"{event.run} ran no code; the reply was:")
            self._print(visible(self._replies.pop(event.run).strip()))
        match event:
            case ModelReplied():
                self._replies[event.run] = event.completion.text
            case CellRan():
                self._replies.pop(event.run, None)
                self._print(f"{event.run} turn {event.turn}, cell {event.cell}:")
                self._console.print(cell_block(event, full=True), highlight=False)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""


def line_of(event: AnyEvent, tree: RunTree) -> str | None:
    """Return whether the event gets a line in the log."""
    if event.run.count(".") > 1:
        return None
    match event:
        case RunStarted():
            model = f" ({one_line(event.model)})" if event.model else ""
            return f"{event.run} starts{model}: {one_line(event.question, 120)}"
        case ModelReplied():
            spent = amounts(tree.spent())
            return f"{event.run} turn {event.turn}, {event.seconds:.1f} s; so far {spent}"
        case RunEnded():
            what = event.error_kind or event.stop_reason
            turns = f"{event.iterations} turn{'' if event.iterations == 1 else 's'}"
            return f"{event.run} ends: {what}, {turns}, {duration(event.seconds)}"
        case _:
            return None


def _way_to_figures(count: int, trajectory: Path | None) -> str:
    figures, them = ("1 figure", "it") if count == 1 else (f"{count} figures", "them")
    if trajectory is None:
        return f"{figures}: --trajectory FILE keeps {them}, repl-env view FILE shows {them}"
    return f"{figures}: repl-env view {shlex.quote(str(trajectory))} shows {them}"


# `RunReport`: the answer of a run, a line of totals, and the exit status.


class RunReport:
    """The end of a run: its result, whole or partial, its status, and the reason if cut short."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._began = time.monotonic()
        self.result: Any = None
        self.status = ExitStatus.FAILED
        self.reason: str | None = None

    def done(self, result: Any) -> None:
        """Record the result of a run that ended by itself."""
        self.result, self.status = result, status_of(result)
        if self.status is ExitStatus.BUDGET:
            exceeded = _get(result, "exceeded")
            why = "the budget ran out" if exceeded is None else refusal_text(exceeded)
            has = _get(result, "final_answer") is not None
            self.reason = f"{why}; {'the answer is what there was' if has else 'no answer'}"
        elif self.status is ExitStatus.OK:
            if _get(result, "stop_reason") == "max_iterations":
                self.reason = "no answer within --max-iterations; the answer is from one more reply"
        else:
            self.reason = f"no answer: {_get(result, 'error_kind') or _get(result, 'stop_reason')}"
        streak = str(self.progress.tree.streak)
        has_own = _get(result, "stop_reason") == "answer"
        if self.reason is not None and streak and not has_own:
            self.reason = f"{self.reason}; {streak}"

    def failed(self, status: ExitStatus, reason: str, error: BaseException | None = None) -> None:
        """Record the error that ended a run, and the partial result of the error."""
        self.result = _get(error, "result", self.result)
        self.status, self.reason = status, reason

    def show(self, *, as_json: bool, quiet: bool, trajectory: Path | None = None) -> None:
        """Print the answer to stdout; the reason, the totals and the way to the figures to stderr.

        `trajectory`: the file that holds the figures, if one was written.
        """
        answer = _get(self.result, "final_answer")
        if as_json:
            print(json_line(self.as_json()), flush=True)
        elif answer is not None:
            print(harmless(answer) if sys.stdout.isatty() else answer, flush=True)
        if self.reason is not None:
            typer.echo(f"repl-env: {one_line(self.reason, 500)}", err=True)
        if refused := self.progress.tree.refused:
            were = "sub-call was" if refused == 1 else "sub-calls were"
            typer.echo(
                f"repl-env: {refused:,} {were} refused by the budget, and the code got the reason "
                "in place of an answer",
                err=True,
            )
        if not quiet:
            typer.echo(self.totals(), err=True)
            if count := self.progress.tree.figures:
                typer.echo(_way_to_figures(count, trajectory), err=True)

    def totals(self) -> str:
        """Return one line with turns, usage and time."""
        tree = self.progress.tree
        turns = _get(self.result, "iterations", 0 if tree.root is None else tree.root.turn)
        took = duration(time.monotonic() - self._began)
        return f"{turns} turn{'' if turns == 1 else 's'} · {amounts(self._spent())} · {took}"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON; `usage` is known without a result, too."""
        result, spent = self.result, self._spent()
        return {
            "answer": _get(result, "final_answer"),
            "answer_value": _get(result, "answer_value"),
            "stop_reason": _get(result, "stop_reason")
            or ("cancelled" if self.status is ExitStatus.INTERRUPTED else None),
            "error_kind": _get(result, "error_kind"),
            "reason": self.reason,
            "iterations": _get(result, "iterations"),
            "usage": asdict(spent),
            "refused_calls": self.progress.tree.refused,
            "cost": None if spent.unpriced else spent.usd,
            "seconds": round(time.monotonic() - self._began, 3),
            "status": int(self.status),
        }

    def _spent(self) -> RunTotals:
        usage = _get(self.result, "usage")
        return exact(usage) if isinstance(usage, Spent) else self.progress.tree.spent()


def status_of(result: Any) -> ExitStatus:
    """Return the exit status of a result; a used-up budget counts before an answer."""
    if _get(result, "stop_reason") == "budget":
        return ExitStatus.BUDGET
    if _get(result, "final_answer") is not None:
        return ExitStatus.OK
    return (
        ExitStatus.INFRASTRUCTURE
        if _get(result, "error_kind") in INFRASTRUCTURE_KINDS
        else ExitStatus.FAILED
    )


def _get(holder: Any, name: str, default: Any = None) -> Any:
    """Return a field of a result that may be partial or None."""
    return getattr(holder, name, default)
