"""The load: clients of one server, all on one event loop of this process.

Raw frames of OpenEnv over `websockets`, without compression or pings, alike to every server. What
the generator itself costs is told by `Load.generator`, and by a server that does nothing
(`floor.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from ..work import STEP
from .load import Step

_WARM_UP = 5  # steps of each client before the clock starts
# More steps than are ever measured: the end of an episode is not what is measured.
_ENDLESS = 10**9
_T = TypeVar("_T")

RESET = json.dumps({"type": "reset", "data": {"max_iterations": _ENDLESS}})
STEPPING = json.dumps({"type": "step", "data": {"code": STEP}})


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, on an event loop like that of the servers."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@asynccontextmanager
async def clients(url: str, count: int) -> AsyncIterator[list[Step]]:
    """Clients with an episode each, by their steps."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(socket(url)) for _ in range(count)]
        await asyncio.gather(*(_begin(each) for each in opened))
        yield [partial(_step, each) for each in opened]


async def openings(url: str, at_once: int, seconds: float) -> int:
    """How many sessions so many clients opened, reset and closed, one after another."""
    end = perf_counter() + seconds
    return sum(await asyncio.gather(*(_open_until(url, end) for _ in range(at_once))))


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


async def _begin(connection: ClientConnection) -> None:
    await ask(connection, RESET)
    for _ in range(_WARM_UP):
        await ask(connection, STEPPING)


async def _step(connection: ClientConnection) -> None:
    result = await ask(connection, STEPPING)
    if result["done"] or not result["observation"]["result"]["success"]:
        raise RuntimeError(f"a step came to something else: {result}")


async def _open_until(url: str, end: float) -> int:
    count = 0
    while perf_counter() < end:
        async with socket(url) as connection:
            await ask(connection, RESET)
        count += 1
    return count
