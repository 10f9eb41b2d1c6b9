"""How the figures are told and kept: a table in a terminal, JSON, tables in pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from repl_env.cli.tables import FittedTable, Heading

from .figure import Figure
from .goals import GOALS
from .machine import Machine
from .pages import fill
from .samples import Samples
from .shown import Others, goal, missed, rows

# Explanation of every table.
_READ = "Medians, quartiles in brackets; each ratio is the median of those of the rounds"


def publish(
    figures: Sequence[Figure],
    others: Others,
    machine: Machine,
    results: Path,
    table: str | None,
    *,
    method: str = "each floor in turn with ours, in the same run",
) -> bool:
    """Print, write `results`, fill the pages' table of that name; whether all goals are met.

    `method` says how the samples were taken.
    """
    described, console = machine.describe(), Console()
    told = f"{_READ}; {method}."
    console.print(figure_table(figures, others, described["summary"], told))
    if table is not None:
        fill(table, figures, others, described["summary"], told)
    results.parent.mkdir(exist_ok=True)
    everything = {"method": told, **_everything(figures, others, described)}
    results.write_text(json.dumps(everything, indent=2) + "\n")
    short = missed(figures)
    console.print(f"Goals missed: {', '.join(short)}" if short else "All goals met.")
    return not short


def figure_table(figures: Sequence[Figure], others: Others, machine: str, told: str) -> FittedTable:
    """The rows for a terminal of any width."""
    header, *body = rows(figures, others)
    shown = FittedTable(
        *(Heading(column, "right" if column else "left") for column in header),
        title=machine,
        note=told,
    )
    styles = {"yes": "green", "NO": "red"}
    for row in body:
        shown.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    return shown


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
                "unit": figure.unit,
                "ours": _record(figure.ours),
                "floor": _record(figure.floor),
                "floor_is": figure.floor_is,
                "ratio": _record(figure.ratio),
                "goal": goal(figure) or None,
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
