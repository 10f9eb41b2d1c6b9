"""`make bench-server`: measure the server beside its floor and OpenEnv's, and print a table.

    python -m benchmarks.server [--peers PYTHON] [--check] [--readme] [--only NAME...]

Writes benchmarks/results/server.json. With --check the exit status is 1 if a goal was missed;
--readme puts the tables into README.md and docs/numbers.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from ..figure import Figure
from ..machine import Machine
from ..report import publish
from ..shown import Others
from . import contexts, many, opening, pausing, served, stepping
from .processor_time import ProcessorTime, processor_time
from .served import Server
from .turns import TOLD

_PEERS = {"OpenEnv echo": "echo", "OpenEnv repl": "repl"}
_RESULTS = Path(__file__).parents[1] / "results" / "server.json"

Measure = Callable[[stepping.Start, ProcessorTime], tuple[list[Figure], Others]]


def _opening(start: stepping.Start, time: ProcessorTime) -> tuple[list[Figure], Others]:
    with start() as servers:
        return opening.opening(servers, time)


def _of_ours(measure: Callable[[Server], list[Figure]]) -> Measure:
    """`measure`, of our server with recovery."""

    def measured(start: stepping.Start, time: ProcessorTime) -> tuple[list[Figure], Others]:
        with served.ours("snapshot") as server:
            return measure(server), {}

    return measured


MEASURES: dict[str, Measure] = {
    "stepping": stepping.stepping,
    "pausing": pausing.pausing,
    "opening": _opening,
    "contexts": _of_ours(contexts.contexts),
    "memory": _of_ours(many.memory),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; 0, or 1 with --check when a goal was missed."""
    options = _options(arguments)
    machine, console = Machine(), Console()
    figures: list[Figure] = []
    others: Others = {name: {} for name in (_PEERS if options.peers else ())}
    start = partial(_started, options.peers)
    with processor_time() as time:
        for name in options.only or MEASURES:
            with console.status(f"measuring {name}"):
                found, beside = MEASURES[name](start, time)
            figures += found
            for peer, values in beside.items():
                others[peer] |= values
    table = "server numbers" if options.readme else None
    met = publish(figures, others, machine, _RESULTS, table, method=TOLD)
    return 1 if options.check and not met else 0


@contextmanager
def _started(peers: str | None) -> Iterator[Mapping[str, Server]]:
    """As `stepping.Start`; `peers` is the interpreter that has OpenEnv, None for none of it."""
    with ExitStack() as stack:
        servers = {
            "restart": stack.enter_context(served.ours("restart")),
            "snapshot": stack.enter_context(served.ours("snapshot")),
            "floor": stack.enter_context(served.floor()),
        }
        if peers is not None:
            for name, environment in _PEERS.items():
                servers[name] = stack.enter_context(served.openenv(peers, environment))
        yield servers


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter that has OpenEnv")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal was missed")
    parser.add_argument("--readme", action="store_true", help="put the tables into the pages")
    parser.add_argument("--only", nargs="*", choices=[*MEASURES], default=())
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
