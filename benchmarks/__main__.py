"""`make bench`: measure, print a table, write benchmarks/results/latest.json.

    python -m benchmarks [--peers PYTHON] [--check] [--only KEY...]

With --check the exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import cells, many, peers, sessions
from .figure import Figure, Measure
from .goals import GOALS, ratio

FIGURES: tuple[Measure, ...] = (
    sessions.cold,
    sessions.cold_preloaded,
    sessions.ready,
    sessions.destroy,
    cells.step,
    cells.stdout,
    cells.context,
    cells.cpu,
    many.rate,
    many.memory,
)
RESULTS = Path(__file__).parent / "results" / "latest.json"
SCALES = {"us": 1e6, "ms": 1e3, "MB": 1e-6, "/s": 1.0}  # from seconds, bytes, 1/s

Others = dict[str, dict[str, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 0, or 1 with --check when a goal was missed."""
    options = _options(arguments)
    console = Console()
    figures: list[Figure] = []
    for measure in FIGURES:
        if options.only and measure.__name__ not in options.only:
            continue
        with console.status(f"measuring {measure.__name__}"):
            figures += measure()
    others: Others = {}
    for name in peers.PEERS if options.peers else ():
        with console.status(f"measuring {name}"):
            others[name] = peers.ask(options.peers, name)
    console.print(table(figures, others))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(record(figures, others), indent=2) + "\n")
    missed = [f.name for f in figures if f.key in GOALS and not GOALS[f.key].met(f)]
    console.print(f"Goals missed: {', '.join(missed)}" if missed else "All goals met.")
    return 1 if options.check and missed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has the peers")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal was missed")
    parser.add_argument("--only", nargs="*", choices=[m.__name__ for m in FIGURES], default=())
    return parser.parse_args(arguments)


def table(figures: Sequence[Figure], others: Others) -> Table:
    """One row per figure: ours, floor, their ratio, the goal, and each peer."""
    shown = Table(title=machine()["summary"], caption="medians; each floor from the same run")
    for column in ("", "ours", "floor", "ratio", "goal", "", *others):
        shown.add_column(column, justify="left" if column == "" else "right")
    for figure in figures:
        goal = GOALS.get(figure.key)
        shown.add_row(
            figure.name,
            _value(figure.ours.median, figure.unit),
            _value(figure.floor.median, figure.unit),
            f"{ratio(figure):.2f}",
            _goal(figure),
            "" if goal is None else ("[green]pass[/]" if goal.met(figure) else "[red]FAIL[/]"),
            *(
                _value(values[figure.key], figure.unit) if figure.key in values else "-"
                for values in others.values()
            ),
        )
    return shown


def _value(value: float, unit: str) -> str:
    return f"{value * SCALES[unit]:.3g} {unit}".replace("e+03", "000")


def _goal(figure: Figure) -> str:
    goal = GOALS.get(figure.key)
    if goal is None:
        return ""
    sign = "≤" if goal.kind == "at most" else "≥"
    return (
        f"{sign} {goal.bound:g}"
        if goal.of == "ratio"
        else f"{sign} {_value(goal.bound, figure.unit)}"
    )


def record(figures: Sequence[Figure], others: Others) -> dict[str, Any]:
    """Everything that was measured, in seconds, bytes and 1/s."""
    return {
        "machine": machine(),
        "figures": [
            {
                "key": figure.key,
                "name": figure.name,
                "ours": _record(figure.ours.values),
                "floor": _record(figure.floor.values),
                "floor_is": figure.floor_is,
                "ratio": ratio(figure),
                "goal": _goal(figure) or None,
                "met": GOALS[figure.key].met(figure) if figure.key in GOALS else None,
            }
            for figure in figures
        ],
        "peers": others,
    }


def _record(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": ordered[len(ordered) // 2],
        "least": ordered[0],
        "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "samples": len(ordered),
    }


def machine() -> dict[str, str]:
    """What the figures depend on besides the code."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    kernel = f"Linux {platform.release()}"
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return {
        "summary": f"{python}, {kernel}, {cores}, load {os.getloadavg()[0]:.1f}",
        "python": python,
        "kernel": kernel,
        "cores": cores,
        "architecture": platform.machine(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
