"""The load: clients of one server, all on one event loop of this process.

Raw frames of OpenEnv, without compression or pings, alike to every server. The client has the same
cores as the servers, so it is written in C and takes a quarter less than `websockets`.
`Load.generator` and a server that does nothing (`floor.py`) show the client's cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from pydantic_core import from_json, to_json

from ..work import STEP
from .load import Step

_WARM_UP = 5  # steps of each client before the clock starts
# More steps than are ever measured: the end of an episode is not what is measured.
_ENDLESS = 10**9
_PATIENCE = 30.0  # seconds for a server to let a client go
_T = TypeVar("_T")

RESET = to_json({"type": "reset", "data": {"max_iterations": _ENDLESS}})
STEPPING = to_json({"type": "step", "data": {"code": STEP}})


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


async def openings(url: str, at_once: int, seconds: float, *, steps: int = 0) -> int:
    """How many sessions so many clients opened, reset, stepped so often and closed, one after
    another."""
    end = perf_counter() + seconds
    return sum(await asyncio.gather(*(_open_until(url, end, steps) for _ in range(at_once))))


class Connection(WSListener):  # type: ignore[misc]
    """One WebSocket, on which a frame is sent and its reply waited for."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bytes] | None = None
        self._over: Exception | None = None  # why there is no reply any more

    def on_ws_connected(self, transport: WSTransport) -> None:
        """It is open."""
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A reply has come, or the server leaves."""
        waiter, self._waiter = self._waiter, None
        if waiter is None or frame.msg_type is not WSMsgType.TEXT or not frame.fin:
            self._end(waiter, f"not asked for: {frame.get_payload_as_bytes()!r}")
        elif not waiter.done():
            waiter.set_result(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """It is closed."""
        self._end(self._waiter, "the connection was closed")

    def _end(self, waiter: asyncio.Future[bytes] | None, why: str) -> None:
        self._over = self._over or ConnectionError(why)
        if waiter is not None and not waiter.done():
            waiter.set_exception(self._over)

    def send(self, frame: bytes) -> None:
        """Send what has no reply."""
        self._transport.send(WSMsgType.TEXT, frame)

    async def ask(self, frame: bytes) -> dict[str, Any]:
        """The data of the reply, which must be no refusal."""
        if self._over is not None:
            raise self._over
        self._waiter = asyncio.get_running_loop().create_future()
        self.send(frame)
        reply: dict[str, Any] = from_json(await self._waiter)
        if reply["type"] == "error":
            raise RuntimeError(f"refused: {reply}")
        return dict(reply["data"])

    async def close(self) -> None:
        """Leave, and wait until the server has heard of it."""
        self._transport.send_close(WSCloseCode.OK)
        async with asyncio.timeout(_PATIENCE):
            await self._transport.wait_disconnected()


@asynccontextmanager
async def socket(url: str, *subprotocols: str) -> AsyncIterator[Connection]:
    """A connection to the server's `/ws`, without limits of its own."""
    _, connection = await ws_connect(
        Connection,
        f"{url.replace('http', 'ws', 1)}/ws",
        extra_headers={"Sec-WebSocket-Protocol": ", ".join(subprotocols)} if subprotocols else {},
        max_frame_size=1 << 30,
        websocket_handshake_timeout=None,
        use_aiofastnet=False,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def _begin(connection: Connection) -> None:
    await connection.ask(RESET)
    for _ in range(_WARM_UP):
        await connection.ask(STEPPING)


async def _step(connection: Connection) -> None:
    result = await connection.ask(STEPPING)
    if result["done"] or not result["observation"]["result"]["success"]:
        raise RuntimeError(f"a step came to something else: {result}")


async def _open_until(url: str, end: float, steps: int) -> int:
    count = 0
    while perf_counter() < end:
        async with socket(url) as connection:
            await connection.ask(RESET)
            for _ in range(steps):
                await connection.ask(STEPPING)
        count += 1
    return count
