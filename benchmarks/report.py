"""How the figures are shown and kept: a table, Markdown, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .figure import Figure
from .goals import GOALS, ratio
from .machine import Machine
from .readme import put
from .samples import Samples

SCALES = {"us": 1e6, "ms": 1e3, "ns": 1e9, "MB": 1e-6, "/s": 1.0}  # from seconds, bytes, 1/s

Others = dict[str, dict[str, float]]


def rows(figures: Sequence[Figure], others: Others) -> list[tuple[str, ...]]:
    """The header and one row per figure: ours, floor, ratio, goal, verdict, and each peer."""
    shown: list[tuple[str, ...]] = [("", "ours", "floor", "ratio", "goal", "met", *others)]
    for figure in figures:
        goal = GOALS.get(figure.key)
        shown.append(
            (
                figure.name,
                _value(figure.ours.median, figure.unit),
                _value(figure.floor.median, figure.unit),
                f"{ratio(figure):.2f}",
                _goal(figure),
                "" if goal is None else ("yes" if goal.met(figure) else "NO"),
                *(
                    _value(values[figure.key], figure.unit) if figure.key in values else "-"
                    for values in others.values()
                ),
            )
        )
    return shown


def publish(
    figures: Sequence[Figure],
    others: Others,
    machine: Machine,
    results: Path,
    readme: str | None,
) -> bool:
    """Print, write `results`, fill the README's part `readme`; whether all goals are met."""
    described, console = machine.describe(), Console()
    console.print(_table(figures, others, described["summary"]))
    if readme is not None:
        put(readme, _markdown(figures, others, described["summary"]))
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(_everything(figures, others, described), indent=2) + "\n")
    missed = [f.name for f in figures if f.key in GOALS and not GOALS[f.key].met(f)]
    console.print(f"Goals missed: {', '.join(missed)}" if missed else "All goals met.")
    return not missed


def _table(figures: Sequence[Figure], others: Others, machine: str) -> Table:
    """The rows for a terminal."""
    header, *body = rows(figures, others)
    shown = Table(title=machine, caption="medians; each floor from the same run")
    for column in header:
        shown.add_column(column, justify="left" if not column else "right")
    colours = {"yes": "[green]yes[/]", "NO": "[red]NO[/]"}
    for row in body:
        shown.add_row(*(colours.get(cell, cell) for cell in row))
    return shown


def _markdown(figures: Sequence[Figure], others: Others, machine: str) -> str:
    """The rows for a README."""
    header, *body = rows(figures, others)
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *body]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{machine}. Medians; each floor from the same run.\n\n{shown}"


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
                "ratio": ratio(figure),
                "goal": _goal(figure) or None,
                "met": GOALS[figure.key].met(figure) if figure.key in GOALS else None,
            }
            for figure in figures
        ],
        "peers": others,
    }


def _record(samples: Samples) -> dict[str, float]:
    ordered = sorted(samples.values)
    return {
        "median": samples.median,
        "least": samples.least,
        "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "samples": len(ordered),
    }
