"""Small servers with this server's edge, on loopback, and clients that do what no library would."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from uvicorn.server import ServerState

from repl_server.auth import APIKeys, Authenticator, configured_keys
from repl_server.connections import ConnectionContext, ConnectionLimits, ReceiveBuffers
from repl_server.guard import GuardContext, RequestGuard
from repl_server.quotas import QuotaRegistry
from repl_server.serving import config
from repl_server.settings import Settings
from repl_server.telemetry import Telemetry
from repl_server.tenants import is_loopback

TEXT, BINARY, CONTINUED, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


@dataclass
class Served:
    """A server that runs."""

    port: int
    telemetry: Telemetry
    inbound: ReceiveBuffers
    connections: ConnectionLimits
    state: ServerState

    @property
    def unsent(self) -> int:
        """Bytes that the server holds for clients which do not take them."""
        return sum(each.transport.get_write_buffer_size() for each in self.state.connections)

    def counted(self, name: str) -> float:
        """A number of its metrics; `name` with labels, as Prometheus writes it."""
        for line in self.telemetry.metrics.text().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0


@asynccontextmanager
async def serve(app: Any, settings: Settings, keys: APIKeys | None = None) -> AsyncIterator[Served]:
    """Serve `app` behind the guard, by the protocols with limits, whatever `settings.host` is."""
    telemetry, inbound = Telemetry(), ReceiveBuffers(settings)
    identity = Authenticator(settings, keys or configured_keys(settings))
    rules = GuardContext(
        settings,
        identity,
        QuotaRegistry(settings.quota, public=not is_loopback(settings.host)),
        inbound,
        telemetry,
    )
    connections = ConnectionLimits(settings, telemetry)
    made = config(RequestGuard(app, rules), ConnectionContext(settings, connections, inbound))
    made.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        return made.http_protocol_class(config=made, server_state=state, app_state={})  # type: ignore[call-arg]

    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0)
    try:
        yield Served(server.sockets[0].getsockname()[1], telemetry, inbound, connections, state)
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
            connection.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await server.wait_closed()


@dataclass
class Reply:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class Wire:
    """One TCP connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    buffered: list[bytes] = field(default_factory=list)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Reply:
        """The next HTTP answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(status, headers, body)

    async def ended(self) -> bytes:
        """Return the bytes that arrive until the server closes the connection."""
        rest = b""
        with suppress(ConnectionError):
            while piece := await self.reader.read(1 << 16):
                rest += piece
        return rest

    async def open_socket(self, path: str = "/ws", **headers: str) -> Reply:
        """Ask for a WebSocket."""
        await self.send(
            request(
                "GET",
                path,
                connection="Upgrade",
                upgrade="websocket",
                sec_websocket_version="13",
                sec_websocket_key="dGhlIHNhbXBsZSBub25jZQ==",
                **headers,
            )
        )
        return await self.reply()

    async def frame(self) -> tuple[int, bytes]:
        """The next WebSocket frame: its opcode and its payload."""
        first, length = await self.reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 15, await self.reader.readexactly(length)

    async def close_code(self) -> int:
        """The code that the server closes with; other frames are left out."""
        while True:
            opcode, carried = await self.frame()
            if opcode == CLOSE:
                return int.from_bytes(carried[:2])


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request. Names of headers have `_` for `-`."""
    lines = {"host": "127.0.0.1", **headers}
    if body:
        lines.setdefault("content_length", str(len(body)))
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def frame(
    carried: bytes, opcode: int = TEXT, *, fin: bool = True, announced: int | None = None
) -> bytes:
    """A frame as clients send them, masked with zeros; `announced`: the length that it claims."""
    length = len(carried) if announced is None else announced
    first = bytes([opcode | (128 if fin else 0)])
    if length < 126:
        size = bytes([128 | length])
    elif length < 1 << 16:
        size = bytes([128 | 126]) + struct.pack("!H", length)
    else:
        size = bytes([128 | 127]) + struct.pack("!Q", length)
    return first + size + bytes(4) + carried


@asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    """A connection to the server on `port`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def skip(seconds: float) -> None:
    """Let so many seconds pass at once, as far as this loop knows, and what is due then happen.

    Tests thus see a server's timeouts without waiting for them, and a stall of this process uses up
    none of the time.
    """
    await turns()
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
    await turns()


async def turns() -> None:
    """Some turns of the loop, in which what is ready is done."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """One request on a separate connection."""
    async with wire(port) as connection:
        await connection.send(request(method, path, body, **headers))
        return await connection.reply()
