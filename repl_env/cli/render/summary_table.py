"""The summary of an evaluation as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .fitted_table import FittedTable, Heading
from .terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from repl_env.evaluation.summary import Scores, Summary

_MOST_FAILURES = 10  # listed one by one; the results file has all


def show(console: Console, summary: Summary) -> None:
    """Print scores, what went wrong, and what it cost."""
    console.print(score_table(summary))
    if summary.failures:
        _show_failures(console, summary)
    totals = FittedTable("", Heading("", wraps=True), title="All tasks that ran", show_header=False)
    for name, text in _totals(summary):
        if text:
            totals.add_row(name, text)
    console.print(totals)


def score_table(summary: Summary) -> FittedTable:
    """Return the mean scores of all tasks and of each group."""
    columns = (Heading(name, "right") for name in ("n", "score", "95 % interval"))
    scores = FittedTable("tasks", *columns, title=_title(summary))
    for row in summary.scores:
        scores.add_row(one_line(row.name), str(row.n), _mean(row), _interval(row))
    return scores


def _title(summary: Summary) -> str:
    return f"{summary.scored} of {summary.tasks} tasks scored"


def _mean(row: Scores) -> str:
    return "-" if row.mean is None else f"{row.mean:.4f}"


def _interval(row: Scores) -> str:
    if row.low is None or row.high is None:
        return "-"
    return f"{row.low:.4f} to {row.high:.4f}"


def _show_failures(console: Console, summary: Summary) -> None:
    table = FittedTable(
        "error_kind",
        Heading("tasks", "right"),
        Heading("for example", wraps=True),
        title="Not scored: failures, not zeros",
    )
    counts = Counter(failure.error_kind for failure in summary.failures)
    for kind, count in counts.most_common():
        first = next(each for each in summary.failures if each.error_kind == kind)
        table.add_row(one_line(kind), str(count), one_line(f"{first.id}: {first.error or ''}"))
    console.print(table)
    names = [failure.id for failure in summary.failures]
    more = f" and {len(names) - _MOST_FAILURES} more" if len(names) > _MOST_FAILURES else ""
    listed = ", ".join(names[:_MOST_FAILURES])
    console.print(f"Without a score: {listed}{more}", markup=False, highlight=False)


def _totals(summary: Summary) -> Iterator[tuple[str, str]]:
    """Return the line about all tasks together, or an empty string."""
    failed = f", {summary.failed_calls:,} failed" if summary.failed_calls else ""
    estimated = f", {summary.estimated_tokens:,} of them estimated"
    tokens = f"{summary.input_tokens:,} in, {summary.output_tokens:,} out"
    yield "ended by", _counts(summary.stop_reasons)
    yield "errors in scored tasks", _counts(summary.error_kinds)
    if summary.calls:
        yield "calls to models", f"{summary.calls:,}{failed}"
        yield "tokens", tokens + (estimated if summary.estimated_tokens else "")
        yield "runs below the root", f"{summary.children:,}"
        yield "cost", _cost(summary)
    yield "seconds for a task", _seconds(summary)
    yield "not run", f"{summary.not_run:,}" if summary.not_run else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{one_line(name)} {count}" for name, count in counts.items())


def _cost(summary: Summary) -> str:
    if not summary.unpriced_calls:
        return f"${summary.usd:.4f}"
    unknown = f"{summary.unpriced_calls:,} calls of unknown price"
    return f"${summary.usd:.4f} and {unknown}" if summary.usd else unknown


def _seconds(summary: Summary) -> str:
    if summary.seconds_p50 is None or summary.seconds_p95 is None:
        return ""
    return f"p50 {summary.seconds_p50:.2f}, p95 {summary.seconds_p95:.2f}"
