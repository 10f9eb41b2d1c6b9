"""`repl-env results FILE [OTHER]`: what an evaluation got wrong, and two evaluations compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .exit_status import ExitStatus
from .options.help_groups import OUTPUT
from .options.output_options import JSONOutput

if TYPE_CHECKING:
    from repl_env.evaluation import RecordedResults

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
    from .render.results_report import as_json_text, show, show_comparison

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
        from .render.results_plot import plot
    except ImportError as error:
        remedy = "--png needs matplotlib: pip install matplotlib"
        typer.echo(f"repl-env results: {error}. {remedy}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    try:
        plot(path, first, second)
    except OSError as error:
        typer.echo(f"repl-env results: {path}: {error.strerror or error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
