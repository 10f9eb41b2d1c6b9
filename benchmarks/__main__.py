"""`make bench`: measure, print a table, write benchmarks/results/latest.json.

    python -m benchmarks [--peers PYTHON] [--check] [--readme] [--only NAME...]
    python -m benchmarks --against REV [--only NAME...]

With --check the exit status is 1 if a goal was missed; --readme puts the tables into README.md and
docs/numbers.md. --against compares this checkout with another commit, and the exit status is 1 if a
figure is worse.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from . import (
    against,
    branches,
    cells,
    chats,
    containers,
    downloads,
    endpoints,
    many,
    peers,
    recovery,
    runs,
    sessions,
    shared,
)
from .figure import Figure, Measure
from .machine import Machine
from .report import publish
from .shown import Others

FIGURES: tuple[Measure, ...] = (
    sessions.cold,
    sessions.cold_preloaded,
    sessions.ready,
    sessions.destroy,
    cells.step,
    cells.syscall,
    cells.stdout,
    cells.context,
    cells.cpu,
    many.rate,
    many.memory,
    shared.shared_memory,
    shared.shared_answer,
    shared.vector,
    branches.branch,
    branches.branches,
    recovery.recovery,
    recovery.copies,
    endpoints.subcalls,
    downloads.download,
    runs.turn,
    runs.subcalls,
    runs.children,
    runs.trees,
    chats.chats,
    containers.containers,
)
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 0, or 1 with --check when a goal was missed, or a figure is worse."""
    options = _options(arguments)
    if options.against:
        names = options.only or [measure.__name__ for measure in FIGURES]
        return 0 if against.compare(options.against, names) else 1
    machine, console = Machine(), Console()
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
    met = publish(figures, others, machine, RESULTS, "numbers" if options.readme else None)
    return 1 if options.check and not met else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has the peers")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal was missed")
    parser.add_argument("--against", metavar="REV", help="compare with a commit, in turn")
    parser.add_argument("--readme", action="store_true", help="put the tables into the pages")
    parser.add_argument("--only", nargs="*", choices=[m.__name__ for m in FIGURES], default=())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
