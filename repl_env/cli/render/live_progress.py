"""A live display of a tree of runs: on a terminal a picture that fits it, elsewhere plain lines.

It is made from events alone (`repl_env.rlm.events`): `Progress.watch` is a `Watcher`. The
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

from repl_env.rlm.budget.budget_limits import Budget, Price
from repl_env.rlm.events import AnyEvent, ModelReplied, RunEnded, RunStarted

from .live_run_tree import RunTree
from .terminal_text import one_line
from .tree_drawing import amounts, duration, picture

# A screen of text; and some room for what stood there before.
_MOST_LINES = 30
_KEEP_LINES = 4


class Progress(Protocol):
    """Shows a tree of runs while it is entered."""

    tree: RunTree

    def watch(self, event: AnyEvent) -> None:
        """Take in an event. From any thread; never waits for a terminal to draw."""

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
) -> Progress:
    """The display that fits `console`: live on a terminal, lines anywhere else; None for none."""
    tree = RunTree(prices)
    if console is None:
        return SilentProgress(tree)
    return (
        LiveTreeDisplay(console, tree, budget)
        if console.is_terminal
        else ProgressLines(console, tree)
    )


class LiveTreeDisplay:
    """A picture of the tree, drawn anew some times a second, and gone when it is left."""

    def __init__(self, console: Console, tree: RunTree, budget: Budget | None = None) -> None:
        self.tree = tree
        self._budget = budget
        self._lock = threading.Lock()
        self._live = Live(self, console=console, refresh_per_second=8, transient=True)

    def watch(self, event: AnyEvent) -> None:
        """Take in an event; the next picture has it."""
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
        self.watch = tree.feed

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
    """One line when a run begins, for each of its turns, and when it ends; nothing is taken back.

    Turns are told of the root and the runs right below it, so that a wide tree stays readable.
    """

    def __init__(self, console: Console, tree: RunTree) -> None:
        self.tree = tree
        self._console = console
        self._lock = threading.Lock()

    def watch(self, event: AnyEvent) -> None:
        """Take in an event, and print its line if it has one."""
        with self._lock:
            self.tree.feed(event)
            if (line := line_of(event, self.tree)) is not None:
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
