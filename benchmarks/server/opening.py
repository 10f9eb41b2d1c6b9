"""Sessions opened, reset and closed per second."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from ..figure import Figure
from ..samples import Samples
from ..shown import Others
from .generator import openings, run
from .processor_time import ProcessorTime
from .served import Server
from .turns import PAUSE, SECONDS_OF_OPENING, rounds


@dataclass(frozen=True, slots=True)
class _Way:
    """Use of each session between its opening and its end, by `at_once` clients at once."""

    key: str
    told: str
    at_once: int
    steps: int


_WAYS = (
    _Way("1", "opened, reset and closed per second, 1 at a time", 1, 0),
    _Way("8", "opened, reset and closed per second, 8 at a time", 8, 0),
    # One that nothing was told serves the next client: what it costs to make one, and to end it,
    # is seen by those that are used.
    _Way("stepped_1", "opened, reset, stepped once and closed per second, 1 at a time", 1, 1),
    _Way("stepped_8", "opened, reset, stepped once and closed per second, 8 at a time", 8, 1),
)

# Of each server and each way, in order.
Taken = Mapping[tuple[str, _Way], list[float]]


def opening(servers: Mapping[str, Server], time: ProcessorTime) -> tuple[list[Figure], Others]:
    """Openings of the server as it comes, with recovery; `servers` as of `stepping.Start`."""
    asked = {name: server for name, server in servers.items() if name != "restart"}
    rates, cpu = run(_taken(asked, time))
    figures = []
    for way in _WAYS:
        figures += [
            Figure(
                f"server_openings_{way.key}",
                f"sessions {way.told}",
                "/s",
                Samples(tuple(rates["snapshot", way])),
                Samples(tuple(rates["floor", way])),
                "likewise, of a server without sessions",
            ),
            Figure(
                f"server_openings_cpu_{way.key}",
                f"CPU of {time.told} for each, sessions {way.told}",
                "us",
                Samples(tuple(cpu["snapshot", way])),
                Samples(tuple(cpu["floor", way])),
                "likewise",
            ),
        ]
    return figures, {
        name: {
            f"server_openings{key}_{way.key}": Samples(tuple(taken[name, way]))
            for way in _WAYS
            for key, taken in (("", rates), ("_cpu", cpu))
        }
        for name in asked
        if name not in ("snapshot", "floor")
    }


async def _taken(servers: Mapping[str, Server], time: ProcessorTime) -> tuple[Taken, Taken]:
    """Openings per second, and what each took of the processors."""
    rates: dict[tuple[str, _Way], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, _Way], list[float]] = defaultdict(list)
    for server in servers.values():
        # The first one pays for what is loaded once.
        await _opened(server, _WAYS[-1])
    for order in rounds([*servers]):
        for way in _WAYS:
            for name in order:
                await asyncio.sleep(PAUSE)
                before, start = time.now(), perf_counter()
                count = await _opened(servers[name], way)
                rates[name, way].append(count / (perf_counter() - start))
                cpu[name, way].append((time.now() - before) / count)
    return rates, cpu


async def _opened(server: Server, way: _Way) -> int:
    return await openings(server.url, way.at_once, SECONDS_OF_OPENING, steps=way.steps)
