"""Sessions opened, reset and closed per second."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from time import perf_counter

from ..figure import Figure
from ..samples import Samples
from ..shown import Others
from .generator import openings, run
from .processor_time import ProcessorTime
from .served import Server
from .turns import PAUSE, SECONDS_OF_OPENING, rounds

AT_ONCE = (1, 8)

# Of each server and each number at once, in order.
Taken = Mapping[tuple[str, int], list[float]]


def opening(servers: Mapping[str, Server], time: ProcessorTime) -> tuple[list[Figure], Others]:
    """Openings of the server as it comes, with recovery; `servers` as in `stepping`."""
    asked = {name: server for name, server in servers.items() if name != "restart"}
    rates, cpu = run(_taken(asked, time))
    figures = []
    for at_once in AT_ONCE:
        told = f"{at_once} at a time"
        figures += [
            Figure(
                f"server_openings_{at_once}",
                f"sessions opened, reset and closed per second, {told}",
                "/s",
                Samples(tuple(rates["snapshot", at_once])),
                Samples(tuple(rates["floor", at_once])),
                "sockets opened and closed, no session",
            ),
            Figure(
                f"server_openings_cpu_{at_once}",
                f"CPU of {time.told} for each, {told}",
                "us",
                Samples(tuple(cpu["snapshot", at_once])),
                Samples(tuple(cpu["floor", at_once])),
                "likewise",
            ),
        ]
    return figures, {
        name: {
            f"server_openings{key}_{at_once}": Samples(tuple(taken[name, at_once]))
            for at_once in AT_ONCE
            for key, taken in (("", rates), ("_cpu", cpu))
        }
        for name in asked
        if name not in ("snapshot", "floor")
    }


async def _taken(servers: Mapping[str, Server], time: ProcessorTime) -> tuple[Taken, Taken]:
    """Openings per second, and what each took of the processors."""
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    cpu: dict[tuple[str, int], list[float]] = defaultdict(list)
    for server in servers.values():
        # The first one pays for what is loaded once.
        await openings(server.url, max(AT_ONCE), SECONDS_OF_OPENING)
    for order in rounds([*servers]):
        for at_once in AT_ONCE:
            for name in order:
                await asyncio.sleep(PAUSE)
                before, start = time.now(), perf_counter()
                count = await openings(servers[name].url, at_once, SECONDS_OF_OPENING)
                rates[name, at_once].append(count / (perf_counter() - start))
                cpu[name, at_once].append((time.now() - before) / count)
    return rates, cpu
