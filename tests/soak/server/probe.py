"""Well-behaved clients on a clock, in a process of their own, so that no other delays them.

    python -m tests.soak.server.probe URL CLIENTS SECONDS

Each makes a step, waits a little, and makes the next; prints milliseconds as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from .raw_socket import Wire

_REST = 0.02  # seconds between steps, on average
_PERCENT = (50, 90, 99, 100)


async def probe(url: str, clients: int, seconds: float) -> dict[str, float]:
    """Durations of steps at some percentiles."""
    end = time.monotonic() + seconds
    taken = await asyncio.gather(*(_client(url, end) for _ in range(clients)))
    ordered = sorted(each for some in taken for each in some)
    last = len(ordered) - 1
    figures = {f"p{part} ms": ordered[min(last, last * part // 100)] * 1e3 for part in _PERCENT}
    return {"steps": len(ordered), **{name: round(value, 2) for name, value in figures.items()}}


async def _client(url: str, end: float) -> list[float]:
    wire = await Wire.open(url)
    await wire.ask("reset", {"max_iterations": 10**9})
    taken: list[float] = []
    # At least one, however long the first takes: the worst case must be included.
    while not taken or time.monotonic() < end:
        start = time.perf_counter()
        result = await wire.run("x = 1")
        taken.append(time.perf_counter() - start)
        if not result["success"]:
            raise RuntimeError(f"a step came to {result}")
        await asyncio.sleep(random.random() * 2 * _REST)
    await wire.close()
    return taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(probe(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))
