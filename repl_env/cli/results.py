"""`repl-env results FILE [OTHER]`: what an evaluation got wrong, and two evaluations compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repl_env.cli.options import OUTPUT, ExitStatus, JSONOutput
from repl_env.cli.tables import FittedTable, Heading, one_line, score_table
from repl_env.evaluation import compare, failure_kind, failures_by_kind, summarize_results

if TYPE_CHECKING:
    from rich.console import Console

    from repl_env.evaluation import Comparison, RecordedResults, Result, ScoreDifference, TaskChange


# Results files as text for a terminal, and as JSON.

_MOST_TEXT = 300  # characters of a question or an answer


def show(console: Console, file: RecordedResults, limit: int) -> None:
    """Print the scores, the kinds of failures and the failed tasks, `limit` of them at most."""
    summary, failures = summarize_results(file.results), failures_by_kind(file.results)
    _show_title(console, file)
    console.print(score_table(summary))
    if not failures:
        console.print("No task failed." if file.results else "The file has no result yet.")
        return
    kinds = FittedTable(
        "kind of failure", Heading("tasks", "right"), Heading("for example", wraps=True)
    )
    for kind, failed in failures.items():
        kinds.add_row(one_line(kind), str(len(failed)), one_line(failed[0].id, 60))
    console.print(kinds)
    failed_tasks = [each for failed in failures.values() for each in failed]
    _list(
        console, "Failed tasks", [_task(file, failed_task) for failed_task in failed_tasks], limit
    )


def show_comparison(
    console: Console, first: RecordedResults, second: RecordedResults, limit: int
) -> None:
    """Print the paired differences and the tasks whose scores changed."""
    found = compare(first.results, second.results)
    _show_title(console, first, "before: ")
    _show_title(console, second, "after:  ")
    if not found.differences:
        console.print("No task is scored in both files.")
    else:
        console.print(_differences(found.differences))
        console.print(_verdict(found.differences[0]))
    for title, changes in (("Worse", found.worse), ("Better", found.better)):
        _list(console, title, [_change(second, each) for each in changes], limit)
    for line in _left_out(found, limit):
        console.print(line)


def _show_title(console: Console, file: RecordedResults, head: str = "") -> None:
    models = [one_line(str(setting["model"])) for setting in file.settings if setting.get("model")]
    model = f" ({', '.join(dict.fromkeys(models))})" if models else ""
    console.print(Text(f"{head}{file.path}{model}"), soft_wrap=True)
    if len(file.settings) > 1:
        console.print(
            f"  The results in this file were made with {len(file.settings)} different settings; "
            "the last result of each task counts."
        )


def _differences(rows: Sequence[ScoreDifference]) -> FittedTable:
    right = ("n", "before", "after", "difference", "95 % interval")
    table = FittedTable("tasks", *(Heading(name, "right") for name in right))
    for row in rows:
        bounds = "-" if row.low is None else f"{row.low:+.4f} to {row.high:+.4f}"
        table.add_row(
            one_line(row.name),
            str(row.n),
            f"{row.before:.4f}",
            f"{row.after:.4f}",
            f"{row.mean:+.4f}",
            bounds,
        )
    return table


def _verdict(row: ScoreDifference) -> str:
    if row.low is None or row.high is None:
        return "Too few tasks differ for an interval."
    if row.low > 0:
        return "The second file scores higher: the interval of the difference is above 0."
    if row.high < 0:
        return "The second file scores lower: the interval of the difference is below 0."
    return "The interval of the difference contains 0: these tasks do not tell which is better."


Block: TypeAlias = tuple[Text, Sequence[tuple[str, str]]]


def _list(console: Console, title: str, blocks: Sequence[Block], limit: int) -> None:
    """Print the blocks under a title, at most `limit` of them."""
    if not blocks:
        return
    shown = blocks[:limit] if limit else blocks
    console.print(Text(f"\n{title}: {len(blocks)}", style="bold"))
    for head, facts in shown:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, text in facts:
            grid.add_row(name, Text(one_line(text, _MOST_TEXT)))
        console.print(Padding(Group(head, grid), (0, 0, 1, 2)))
    if len(shown) < len(blocks):
        console.print(f"  and {len(blocks) - len(shown)} more; --limit 0 lists all.")


def _task(file: RecordedResults, result: Result) -> Block:
    score = "" if result.score is None else f", score {result.score:g}"
    head = Text.assemble((one_line(result.id), "bold"), f": {failure_kind(result)}{score}")
    facts = [*_asked(result), ("answer", result.answer), *_how(file, result)]
    return head, [(name, text) for name, text in facts if text is not None]


def _change(file: RecordedResults, change: TaskChange) -> Block:
    scores = f"{change.before.score:g} → {change.after.score:g}"
    head = Text.assemble((one_line(change.id), "bold"), f": {scores}")
    answers = [("before", change.before.answer), ("after", change.after.answer)]
    facts = [*_asked(change.after), *answers, *_how(file, change.after)]
    return head, [(name, text) for name, text in facts if text is not None]


def _asked(result: Result) -> Iterator[tuple[str, str | None]]:
    yield "question", result.question
    yield "expected", None if result.expected is None else _shown(result.expected)


def _how(file: RecordedResults, result: Result) -> Iterator[tuple[str, str | None]]:
    trajectory = file.trajectory(result)
    yield "error", result.error
    yield "trajectory", None if trajectory is None else str(trajectory)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _left_out(found: Comparison, limit: int) -> Iterator[str]:
    groups = (
        ("are not the same task in both files, and left out", found.unequal),
        ("are scored in the first file only", found.only_before),
        ("are scored in the second file only", found.only_after),
    )
    for reason, ids in groups:
        if ids:
            count = limit or len(ids)
            more = f" and {len(ids) - count} more" if len(ids) > count else ""
            names = ", ".join(one_line(each, 60) for each in ids[:count])
            yield f"{len(ids)} {reason}: {names}{more}"


def as_json_text(first: RecordedResults, second: RecordedResults | None) -> str:
    """Return the same facts as JSON."""
    record: dict[str, Any] = {"file": _file(first)}
    if second is not None:
        record["other"] = _file(second)
        record["comparison"] = _comparison(compare(first.results, second.results))
    return json.dumps(record, indent=2)


def _file(file: RecordedResults) -> dict[str, Any]:
    failed = failures_by_kind(file.results)
    return {
        "path": str(file.path),
        "settings": list(file.settings),
        "summary": asdict(summarize_results(file.results)),
        "failures": {
            kind: [_record(file, each) for each in results] for kind, results in failed.items()
        },
    }


def _record(file: RecordedResults, result: Result) -> dict[str, Any]:
    trajectory = file.trajectory(result)
    names = ("id", "kind", "score", "question", "expected", "answer", "stop_reason", "error_kind")
    record = {name: getattr(result, name) for name in (*names, "error")}
    return {**record, "trajectory": None if trajectory is None else str(trajectory)}


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "differences": [asdict(difference) for difference in found.differences],
        "better": [_changed(each) for each in found.better],
        "worse": [_changed(each) for each in found.worse],
        "unequal": found.unequal,
        "only_before": found.only_before,
        "only_after": found.only_after,
    }


def _changed(change: TaskChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "before": change.before.score,
        "after": change.after.score,
        "answer_before": change.before.answer,
        "answer_after": change.after.answer,
    }


_READING = "Listing"  # a heading of the help screen


Other: TypeAlias = Annotated[
    Path | None,
    typer.Argument(help="A later results file of the same tasks, to compare with the first."),
]
Limit: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Maximum number of tasks in each list; 0: no limit.",
        rich_help_panel=_READING,
    ),
]
Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.png",
        help="Write a plot of the scores by kind of task; an existing plot is replaced.",
        rich_help_panel=OUTPUT,
    ),
]


def results(
    file: Annotated[Path, typer.Argument(help="Results file of `repl-env eval`.")],
    other: Other = None,
    limit: Limit = 10,
    png: Plot = None,
    as_json: JSONOutput = False,
) -> None:
    """List the wrong answers of an evaluation and the kinds of its failures.

    With OTHER, print how the scores of the tasks that both files score differ, with the 95 %
    confidence interval of the mean paired difference, and the tasks that changed.
    """
    if png is not None and png.suffix.lower() != ".png":
        raise typer.BadParameter(f"{png} does not end with .png", param_hint="--png")
    first = _read(file)
    second = None if other is None else _read(other)
    if png is not None:
        _plot(png, first, second)

    if as_json:
        typer.echo(as_json_text(first, second))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if second is None:
        show(console, first, limit)
    else:
        show_comparison(console, first, second, limit)


def _read(path: Path) -> RecordedResults:
    from repl_env.evaluation import ResultsError, read_results

    try:
        return read_results(path)
    except ResultsError as error:
        raise typer.BadParameter(str(error)) from error


def _plot(path: Path, first: RecordedResults, second: RecordedResults | None) -> None:
    """Write the plot; exit with status 1 without matplotlib, or if the file cannot be written."""
    try:
        from repl_env.cli.plot import plot
    except ImportError as error:
        remedy = "--png needs matplotlib: pip install matplotlib"
        typer.echo(f"repl-env results: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    try:
        plot(path, first, second)
    except OSError as error:
        typer.echo(f"repl-env results: {path}: {error.strerror or error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
