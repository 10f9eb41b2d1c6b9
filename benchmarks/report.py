"""How the figures are shown and kept: a table, Markdown, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from operator import truediv
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .figure import Figure
from .goals import GOALS
from .machine import Machine
from .readme import put
from .samples import Samples

SCALES = {"us": 1e6, "ms": 1e3, "ns": 1e9, "MB": 1e-6, "/s": 1.0}  # from seconds, bytes, 1/s

# What is said of every table.
_READ = "Medians, quartiles in brackets; each ratio is the median of those of the rounds"

# By the names of peers and the keys of figures.
Others = dict[str, dict[str, Samples]]


def rows(figures: Sequence[Figure], others: Others) -> list[tuple[str, ...]]:
    """The header and one row per figure: ours, floor, ratio, goal, verdict, and each peer."""
    shown: list[tuple[str, ...]] = [("", "ours", "floor", "ratio", "goal", "met", *others)]
    for figure in figures:
        goal = GOALS.get(figure.key)
        shown.append(
            (
                figure.name,
                _shown(figure.ours, figure.unit),
                _shown(figure.floor, figure.unit),
                _ratio(figure.ratio),
                _goal(figure),
                "" if goal is None else ("yes" if goal.met(figure) else "NO"),
                *(_peer(figure, values.get(figure.key)) for values in others.values()),
            )
        )
    return shown


def publish(
    figures: Sequence[Figure],
    others: Others,
    machine: Machine,
    results: Path,
    readme: str | None,
    *,
    method: str = "each floor in turn with ours, in the same run",
) -> bool:
    """Print, write `results`, fill the README's part `readme`; whether all goals are met.

    `method` says how the samples were taken.
    """
    described, console = machine.describe(), Console()
    told = f"{_READ}; {method}."
    console.print(_table(figures, others, described["summary"], told))
    if readme is not None:
        put(readme, _markdown(figures, others, described["summary"], told))
    results.parent.mkdir(exist_ok=True)
    everything = {"method": told, **_everything(figures, others, described)}
    results.write_text(json.dumps(everything, indent=2) + "\n")
    missed = [f.name for f in figures if f.key in GOALS and not GOALS[f.key].met(f)]
    console.print(f"Goals missed: {', '.join(missed)}" if missed else "All goals met.")
    return not missed


def _table(figures: Sequence[Figure], others: Others, machine: str, told: str) -> Table:
    """The rows for a terminal."""
    header, *body = rows(figures, others)
    shown = Table(title=machine, caption=told)
    for column in header:
        shown.add_column(column, justify="left" if not column else "right")
    colours = {"yes": "[green]yes[/]", "NO": "[red]NO[/]"}
    for row in body:
        shown.add_row(*(colours.get(cell, cell) for cell in row))
    return shown


def _markdown(figures: Sequence[Figure], others: Others, machine: str, told: str) -> str:
    """The rows for a README."""
    header, *body = rows(figures, others)
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *body]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{machine}. {told}\n\n{shown}"


def _shown(samples: Samples, unit: str) -> str:
    """`1.50 ms [1.40, 1.60]`."""
    shown = _value(samples.median, unit)
    if samples.quartiles is None:
        return shown
    low, high = (_value(each, unit).removesuffix(f" {unit}") for each in samples.quartiles)
    return f"{shown} [{low}, {high}]"


def _ratio(samples: Samples) -> str:
    shown = f"{samples.median:.2f}"
    if samples.quartiles is None:
        return shown
    low, high = samples.quartiles
    return f"{shown} [{low:.2f}, {high:.2f}]"


def _peer(figure: Figure, theirs: Samples | None) -> str:
    """What a peer has; and what ours is to it, if that was in turn with it."""
    if theirs is None:
        return "-"
    shown = _value(theirs.median, figure.unit)
    if len(theirs.values) == 1:
        return shown
    return f"{shown} ({figure.ours.per_round(theirs, truediv).median:.2f})"


def _value(value: float, unit: str) -> str:
    scaled = value * SCALES[unit]
    digits = max(0, 2 - math.floor(math.log10(scaled))) if scaled > 0 else 0
    return f"{scaled:,.{min(digits, 4)}f} {unit}"


def _goal(figure: Figure) -> str:
    goal = GOALS.get(figure.key)
    if goal is None:
        return ""
    sign = "≤" if goal.kind == "at most" else "≥"
    if goal.of == "ratio":
        return f"{sign} {goal.bound:g}"
    more = "+" if goal.of == "difference" else ""
    return f"{sign} {more}{_value(goal.bound, figure.unit)}"


def _everything(
    figures: Sequence[Figure], others: Others, machine: dict[str, str]
) -> dict[str, Any]:
    """Everything that was measured, in seconds, bytes and 1/s."""
    return {
        "machine": machine,
        "figures": [
            {
                "key": figure.key,
                "name": figure.name,
                "ours": _record(figure.ours),
                "floor": _record(figure.floor),
                "floor_is": figure.floor_is,
                "ratio": _record(figure.ratio),
                "goal": _goal(figure) or None,
                "met": GOALS[figure.key].met(figure) if figure.key in GOALS else None,
            }
            for figure in figures
        ],
        "peers": {
            name: {key: _record(samples) for key, samples in values.items()}
            for name, values in others.items()
        },
    }


def _record(samples: Samples) -> dict[str, Any]:
    ordered = sorted(samples.values)
    return {
        "median": samples.median,
        "quartiles": samples.quartiles,
        "least": samples.least,
        "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "samples": len(ordered),
    }
