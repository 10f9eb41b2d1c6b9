"""A plot of the scores of one or two results files, with matplotlib, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from repl_env.evaluation import compare, summarize_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from repl_env.evaluation import RecordedResults, ScoreDifference


_HEIGHT = 0.45  # inches of a row


def plot(path: Path, first: RecordedResults, second: RecordedResults | None) -> None:
    """Write a PNG: the mean scores by kind, or the mean differences, with 95 % intervals.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)  # no window system, whatever the environment says
    axes = figure.subplots()
    rows = _scores(axes, first) if second is None else _draw_differences(axes, first, second)
    figure.set_size_inches(7, 1.5 + _HEIGHT * max(1, rows))
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, format="png", dpi=150)


def _scores(axes: Axes, file: RecordedResults) -> int:
    rows = [row for row in summarize_results(file.results).scores if row.mean is not None]
    names = [f"{row.name} (n={row.n})" for row in rows]
    means = [row.mean or 0.0 for row in rows]
    bounds = [(row.low, row.high) for row in rows]
    _intervals(axes, names, means, bounds)
    axes.set_xlabel("mean score, 95 % interval")
    axes.set_title(file.path.name, parse_math=False)
    return len(rows)


def _draw_differences(axes: Axes, first: RecordedResults, second: RecordedResults) -> int:
    rows: Sequence[ScoreDifference] = compare(first.results, second.results).differences
    names = [f"{row.name} (n={row.n})" for row in rows]
    bounds = [(row.low, row.high) for row in rows]
    _intervals(axes, names, [row.mean for row in rows], bounds)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("mean paired difference of the scores, 95 % interval")
    axes.set_title(f"{second.path.name} minus {first.path.name}", parse_math=False)
    return len(rows)


def _intervals(
    axes: Axes,
    names: Sequence[str],
    means: Sequence[float],
    bounds: Sequence[tuple[float | None, float | None]],
) -> None:
    """Draw a dot for each mean, and a line between its bounds if they are known."""
    places = range(len(names))
    for place, (low, high) in zip(places, bounds, strict=True):
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color="tab:blue", linewidth=2, alpha=0.6)
    axes.plot(means, places, "o", color="tab:blue")
    # A name of a dataset is no formula, whatever dollar signs it has.
    axes.set_yticks(list(places), names, parse_math=False)
