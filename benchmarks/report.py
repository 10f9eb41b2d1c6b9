"""How the figures are shown and kept: a table, Markdown, JSON."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from .figure import Figure
from .goals import GOALS, ratio
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


def table(figures: Sequence[Figure], others: Others) -> Table:
    """The rows for a terminal."""
    header, *body = rows(figures, others)
    shown = Table(title=machine()["summary"], caption="medians; each floor from the same run")
    for column in header:
        shown.add_column(column, justify="left" if not column else "right")
    colours = {"yes": "[green]yes[/]", "NO": "[red]NO[/]"}
    for row in body:
        shown.add_row(*(colours.get(cell, cell) for cell in row))
    return shown


def markdown(figures: Sequence[Figure], others: Others) -> str:
    """The rows for a README."""
    header, *body = rows(figures, others)
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *body]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{machine()['summary']}. Medians; each floor from the same run.\n\n{shown}"


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


def record(figures: Sequence[Figure], others: Others) -> dict[str, Any]:
    """Everything that was measured, in seconds, bytes and 1/s."""
    return {
        "machine": machine(),
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


def machine() -> dict[str, str]:
    """What the figures depend on besides the code."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    release = ".".join(platform.release().split(".")[:2])
    kernel = f"{platform.system()} {release}"
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return {
        "summary": f"{python}, {kernel}, {cores}, load {os.getloadavg()[0]:.1f}",
        "python": python,
        "kernel": kernel,
        "cores": cores,
        "architecture": platform.machine(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
