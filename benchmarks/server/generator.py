"""The load: clients of one server, all on one event loop of this process.

Raw frames of OpenEnv over `websockets`, without compression or pings, alike to every server. What
the generator itself costs is told by `Load.cpu`, and by a server that does nothing (`floor.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, TypeVar

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from ..work import STEP

_WARM_UP = 5  # steps of each client before the clock starts
# More steps than are ever measured: the end of an episode is not what is measured.
_ENDLESS = 10**9
_T = TypeVar("_T")

RESET = json.dumps({"type": "reset", "data": {"max_iterations": _ENDLESS}})
STEPPING = json.dumps({"type": "step", "data": {"code": STEP}})


@dataclass(frozen=True, slots=True)
class Load:
    """What clients saw: steps per second of all, seconds of each in rising order.

    `cpu` is what the generator took for each step, in seconds of its process.
    """

    rate: float
    seconds: tuple[float, ...]
    cpu: float

    def quantile(self, part: float) -> float:
        """The seconds within which this part of the steps was answered."""
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * part))]


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, on an event loop like that of the servers."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def steps(url: str, clients: int, seconds: float) -> Load:
    """What `clients` that step all the time, each in an episode of its own, see for so long."""
    return run(_steps(url, clients, seconds))


def openings(url: str, at_once: int, seconds: float) -> float:
    """Sessions opened, reset and closed per second, by so many clients at once."""
    return run(_openings(url, at_once, seconds))


@asynccontextmanager
async def socket(url: str, *subprotocols: str) -> AsyncIterator[ClientConnection]:
    """A connection to the server's `/ws`, without limits of its own."""
    async with connect(
        f"{url.replace('http', 'ws', 1)}/ws",
        subprotocols=subprotocols or None,  # type: ignore[arg-type]
        compression=None,
        max_size=None,
        ping_interval=None,
        open_timeout=None,
        proxy=None,
    ) as connection:
        yield connection


async def ask(connection: ClientConnection, frame: str) -> dict[str, Any]:
    """The data of the reply, which must be no refusal."""
    await connection.send(frame)
    reply: dict[str, Any] = json.loads(await connection.recv())
    if reply["type"] == "error":
        raise RuntimeError(f"refused: {reply}")
    return dict(reply["data"])


async def _steps(url: str, clients: int, seconds: float) -> Load:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(socket(url)) for _ in range(clients)]
        await asyncio.gather(*(_begin(each) for each in opened))
        cpu, start = process_time(), perf_counter()
        taken = await asyncio.gather(*(_step_until(each, start + seconds) for each in opened))
        elapsed, cpu = perf_counter() - start, process_time() - cpu
    ordered = sorted(second for each in taken for second in each)
    return Load(len(ordered) / elapsed, tuple(ordered), cpu / len(ordered))


async def _begin(connection: ClientConnection) -> None:
    await ask(connection, RESET)
    for _ in range(_WARM_UP):
        await ask(connection, STEPPING)


async def _step_until(connection: ClientConnection, end: float) -> list[float]:
    taken: list[float] = []
    now = perf_counter()
    while now < end:
        result = await ask(connection, STEPPING)
        before, now = now, perf_counter()
        taken.append(now - before)
        if result["done"] or not result["observation"]["result"]["success"]:
            raise RuntimeError(f"a step came to something else: {result}")
    return taken


async def _openings(url: str, at_once: int, seconds: float) -> float:
    start = perf_counter()
    counts = await asyncio.gather(*(_open_until(url, start + seconds) for _ in range(at_once)))
    return sum(counts) / (perf_counter() - start)


async def _open_until(url: str, end: float) -> int:
    count = 0
    while perf_counter() < end:
        async with socket(url) as connection:
            await ask(connection, RESET)
        count += 1
    return count
