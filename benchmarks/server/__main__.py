"""`make bench-server`: measure the server beside its floor and OpenEnv's, and print a table.

    python -m benchmarks.server [--peers PYTHON] [--check] [--readme] [--only NAME...]

Writes benchmarks/results/server.json. With --check the exit status is 1 if a goal was missed;
--readme puts the tables into README.md and docs/numbers.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from ..figure import Figure
from ..machine import Machine
from ..report import publish
from ..shown import Others
from . import contexts, many, opening, served, stepping
from .processor_time import ProcessorTime, processor_time
from .served import Server
from .turns import TOLD

_PEERS = {"OpenEnv echo": "echo", "OpenEnv repl": "repl"}
_RESULTS = Path(__file__).parents[1] / "results" / "server.json"

Measure = Callable[[Mapping[str, Server], ProcessorTime], tuple[list[Figure], Others]]
MEASURES: dict[str, Measure] = {
    "stepping": stepping.stepping,
    "opening": opening.opening,
    "contexts": lambda servers, _: (contexts.contexts(servers["snapshot"]), {}),
    "memory": lambda servers, _: (many.memory(servers["snapshot"]), {}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 0, or 1 with --check when a goal was missed."""
    options = _options(arguments)
    machine, console = Machine(), Console()
    figures: list[Figure] = []
    others: Others = {name: {} for name in (_PEERS if options.peers else ())}
    with ExitStack() as stack:
        time = stack.enter_context(processor_time())
        servers = {
            "restart": stack.enter_context(served.ours("restart")),
            "snapshot": stack.enter_context(served.ours("snapshot")),
            "floor": stack.enter_context(served.floor()),
        }
        for name in others:
            servers[name] = stack.enter_context(served.openenv(options.peers, _PEERS[name]))
        for name in options.only or MEASURES:
            with console.status(f"measuring {name}"):
                found, beside = MEASURES[name](servers, time)
            figures += found
            for peer, values in beside.items():
                others[peer] |= values
    table = "server numbers" if options.readme else None
    met = publish(figures, others, machine, _RESULTS, table, method=TOLD)
    return 1 if options.check and not met else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has OpenEnv")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal was missed")
    parser.add_argument("--readme", action="store_true", help="put the tables into the pages")
    parser.add_argument("--only", nargs="*", choices=[*MEASURES], default=())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
