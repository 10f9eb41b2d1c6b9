"""Sessions opened, reset and closed per second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..figure import Figure
from ..report import Others
from ..samples import Samples
from .generator import openings
from .served import Server

AT_ONCE = (1, 8)
_SECONDS = 2.0
_ROUNDS = 3


def opening(servers: Mapping[str, Server]) -> tuple[list[Figure], Others]:
    """Openings of the server as it comes, with recovery; `servers` as in `stepping`."""
    asked = [name for name in servers if name != "restart"]
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(_ROUNDS):
        for at_once in AT_ONCE:
            for name in asked if number % 2 else reversed(asked):
                rates[name, at_once].append(openings(servers[name].url, at_once, _SECONDS))
    figures = [
        Figure(
            f"server_openings_{at_once}",
            f"sessions opened, reset and closed per second, {at_once} at a time",
            "/s",
            Samples(tuple(rates["snapshot", at_once])),
            Samples(tuple(rates["floor", at_once])),
            "sockets opened and closed, no session",
        )
        for at_once in AT_ONCE
    ]
    peers = [name for name in asked if name not in ("snapshot", "floor")]
    return figures, {
        name: {
            f"server_openings_{at_once}": Samples(tuple(rates[name, at_once])).median
            for at_once in AT_ONCE
        }
        for name in peers
    }
