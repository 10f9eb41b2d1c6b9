"""A live display of a tree of runs: on a terminal a picture that fits it, elsewhere plain lines.

It is made from events alone (`repl_env.rlm.events`): `Progress.on_event` is a `EventHandler`. The
display shows the first line of questions, prompts and code, without terminal control sequences.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, ConsoleOptions, Group
from rich.live import Live

from repl_env.common.json_values import visible
from repl_env.rlm.budget.budget_limits import Budget, Price
from repl_env.rlm.events import AnyEvent, CellRan, ModelReplied, RunEnded, RunStarted

from .live_run_tree import RunTree
from .recorded_tree import cell_block
from .terminal_text import one_line
from .tree_drawing import amounts, duration, picture

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
