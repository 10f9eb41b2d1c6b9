"""Steps per second of clients that pause between their steps, as a client with a model does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from ..figure import Figure
from ..samples import Samples
from ..shown import Others
from .generator import clients, run
from .load import load
from .processor_time import ProcessorTime
from .served import Server
from .stepping import Start
from .turns import PAUSE, SECONDS_OF_PAUSING, rounds

_CLIENTS = 8
_BETWEEN = 0.1  # seconds; a model takes longer


def pausing(start: Start, time: ProcessorTime) -> tuple[list[Figure], Others]:
    """The rate of our server with recovery, beside its own rate without."""
    with start() as servers:
        rates = run(_rates({name: servers[name] for name in ("restart", "snapshot")}, time))
    return [
        Figure(
            "server_rate_pausing",
            f"steps per second, {_CLIENTS} clients that pause for {_BETWEEN * 1000:.0f} ms,"
            " with recovery",
            "/s",
            Samples(tuple(rates["snapshot"])),
            Samples(tuple(rates["restart"])),
            "likewise, without recovery",
        )
    ], {}


async def _rates(servers: Mapping[str, Server], time: ProcessorTime) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = defaultdict(list)
    for order in rounds([*servers]):
        for name in order:
            async with clients(servers[name].url, _CLIENTS) as steps:
                await asyncio.sleep(PAUSE)
                rates[name].append((await load(steps, SECONDS_OF_PAUSING, time, _BETWEEN)).rate)
    return rates
