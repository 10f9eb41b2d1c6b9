"""Abuse of one kind at a time, from a process of its own that takes what the cores have left.

    python -m tests.soak.server.kinds URL KIND CLIENTS

Says "begun" when all clients have a session, goes on until SIGTERM, and says then how often what it
does took place: a reply of the server shows it. It is never 0 unless the abuse was empty.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed

from .forged_messages import FORGED
from .raw_socket import Refused, Wire
from .server_process import ABUSER

_ENDLESS = 10**9  # steps of an episode
_TIMEOUT = 2.0  # seconds of a cell
_AT_ONCE = 64  # requests that a flood sends before it reads

# Code that a session is asked to run again and again, by kind of abuse.
CODE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "endless loop": "while True: pass",
        "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
        "fork bomb that leaves its session": (
            "import os\nwhile True:\n    try:\n        if not os.fork(): os.setsid()\n"
            "    except OSError: pass\n"
        ),
        "memory bomb": "x = []\nwhile True: x.append(bytearray(b'z' * (8 << 20)))",
        "output flood": "while True: print('x' * 1000)",
        **FORGED,
    }
)
FLOOD: Final = "request flood"
_HEAD: Final = b"Host: 127.0.0.78\r\nAuthorization: Bearer %b\r\n" % ABUSER.encode()


class Proof:
    """How often what an abuser does took place."""

    def __init__(self) -> None:
        self.count = 0

    def given(self) -> None:
        """Count once more."""
        self.count += 1


_Act: TypeAlias = Callable[[Wire, Proof], Awaitable[None]]
_Connection: TypeAlias = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter, Proof], Awaitable[None]
]


async def _abuse(url: str, begun: asyncio.Barrier, act: _Act, proof: Proof) -> None:
    wire = await _begin(url, act)
    await begun.wait()
    while True:
        try:
            await act(wire, proof)
        except Refused:
            await wire.ask("reset", {"max_iterations": _ENDLESS})
        except ConnectionClosed:
            wire = await _begin(url, act)


async def _begin(url: str, act: _Act) -> Wire:
    """Open a session, with the files that `act` is about."""
    wire = await Wire.open(url, ABUSER)
    await wire.ask("reset", {"max_iterations": _ENDLESS})
    if act is _listed:
        await wire.run("for n in range(20_000): open(f'name-{n}', 'w').close()", timeout_s=60)
    return wire


async def _flood(wire: Wire, proof: Proof) -> None:
    ids = [await wire.send("step", {"code": "x = 1"}) for _ in range(_AT_ONCE)]
    for each in ids:
        await wire.reply(each)
    proof.given()


async def _raw(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port)


async def _until_cut(url: str, act: _Connection, proof: Proof) -> None:
    """Make connections, one after another, and let `act` have each until the server ends it."""
    while True:
        with suppress(OSError, EOFError, ValueError):
            reader, writer = await _raw(url)
            try:
                await act(reader, writer, proof)
            finally:
                writer.transport.abort()


def _pipelined(request: bytes) -> _Connection:
    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof) -> None:
        writer.write(request * _PIPELINED)
        writer.write(b"GET /ready HTTP/1.1\r\n%bConnection: close\r\n\r\n" % _HEAD)
        answered = 0
        while part := await reader.read(1 << 20):
            answered += part.count(b"HTTP/1.1 ")
            if answered > 1:  # so the server did not close the connection after the first
                proof.given()

    return act


async def _large_body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof
) -> None:
    head = b"POST /reset HTTP/1.1\r\n%bContent-Type: application/json\r\n" % _HEAD
    writer.write(head + b"Content-Length: %d\r\n\r\n" % len(_BODY))
    for begin in range(0, len(_BODY), 1 << 18):
        writer.write(_BODY[begin : begin + (1 << 18)])
        await writer.drain()
    await _answered(reader, proof, b" 200 ", b" 429 ", b" 503 ")


async def _wrong_key(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof
) -> None:
    key = b"GET /ready HTTP/1.1\r\nHost: 127.0.0.78\r\nAuthorization: Bearer wrong\r\n\r\n"
    while True:
        writer.write(key)
        await _answered(reader, proof, b" 401 ")
        fields = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(fields.lower().partition(b"content-length:")[2].split()[0]))


async def _many_chunks(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof
) -> None:
    head = b"PUT /contexts/%b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head % (b"0" * 64, _HEAD) + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
    await writer.drain()
    with suppress(ConnectionError):
        await reader.read()
    proof.given()  # the server has closed the connection, after more than it takes


async def _huge_headers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof
) -> None:
    writer.write(b"GET /ready HTTP/1.1\r\n" + _HEAD + b"a: b\r\n" * 8_000 + b"\r\n")
    await _answered(reader, proof, b" 413 ")


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof) -> None:
    writer.write(b"GET /ready HTTP/1.1\r\n" + _HEAD + b"\r\n")
    proof.given()  # the connection was accepted


async def _trickle(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proof: Proof
) -> None:
    for sent, byte in enumerate(b"GET /ready HTTP/1.1\r\n" + _HEAD + b"a: " + b"b" * 1000):
        if writer.transport.is_closing() or reader.at_eof():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)
        if sent == 20:  # at least a fifth of a second, in which the server has waited for more
            proof.given()


async def _answered(reader: asyncio.StreamReader, proof: Proof, *statuses: bytes) -> None:
    """Read the first line of a response; one of `statuses` proves that the request was read."""
    line = await reader.readuntil(b"\r\n")
    if any(status in line for status in statuses):
        proof.given()


def _call(method: bytes, path: bytes, body: bytes = b"") -> bytes:
    kinds = b"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    head = b"%b %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n"
    return head % (method, path, _HEAD, kinds, len(body)) + body


_PIPELINED = 3_000
_BODY = json.dumps({"context": "x" * (15 << 20)}).encode()
_INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/list",
        "params": {},
    }
).encode()
# Connections, by kind of abuse, and what each of them does.
CONNECTIONS: Final[Mapping[str, tuple[int, _Connection]]] = MappingProxyType(
    {
        "pipelined requests": (100, _pipelined(_call(b"GET", b"/ready"))),
        "pipelined metrics": (100, _pipelined(_call(b"GET", b"/metrics"))),
        "pipelined HEAD": (100, _pipelined(_call(b"HEAD", b"/ready"))),
        "pipelined OPTIONS": (100, _pipelined(_call(b"OPTIONS", b"/step"))),
        "pipelined MCP": (100, _pipelined(_call(b"POST", b"/mcp", _INITIALIZE))),
        "large bodies": (64, _large_body),
        "wrong keys": (64, _wrong_key),
        "chunks of a byte": (32, _many_chunks),
        "huge headers": (64, _huge_headers),
        "resets": (64, _reset),
        "trickled headers": (100, _trickle),
    }
)
LISTING: Final = "long listings"
SMALL_FRAMES: Final = "small frames"
KINDS: Final = (*CODE, FLOOD, LISTING, SMALL_FRAMES, *CONNECTIONS)


async def _listed(wire: Wire, proof: Proof) -> None:
    """List a workspace of 20,000 names, a hundred times on one connection, first its last rows."""
    head = b"GET /files?limit=%d HTTP/1.1\r\n%bX-Session-Id: %b\r\n\r\n"
    reader, writer = await _raw(wire.url)
    try:
        for number in range(100):
            # All rows of twenty workspaces take longer than a kind is measured.
            writer.write(head % (100_000 if number else 100, _HEAD, wire.token.encode()))
            fields = await reader.readuntil(b"\r\n\r\n")
            if not fields.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(fields.decode())
            size = int(fields.lower().partition(b"content-length:")[2].split()[0])
            await reader.readexactly(size)
            proof.given()
    finally:
        writer.transport.abort()


async def _small_frames(wire: Wire, proof: Proof) -> None:
    for sent in range(20_000):
        await wire.connection.send("{")
        if sent == 1_000:
            proof.given()
    await wire.connection.wait_closed()


async def abuse(url: str, kind: str, clients: int) -> None:
    """Abuse until SIGTERM; print then how often it took place."""
    proof = Proof()
    tasks = asyncio.create_task(_abuse_all(url, kind, clients, proof))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tasks.cancel)
    with suppress(asyncio.CancelledError):
        await tasks
    print(proof.count, flush=True)


async def _abuse_all(url: str, kind: str, clients: int, proof: Proof) -> None:
    if kind in CONNECTIONS:
        count, connection = CONNECTIONS[kind]
        print("begun", flush=True)
        await asyncio.gather(*(_until_cut(url, connection, proof) for _ in range(count)))
    begun = asyncio.Barrier(clients + 1)

    async def cell(wire: Wire, proof: Proof) -> None:
        await wire.run(CODE[kind], timeout_s=_TIMEOUT, stream=True)
        proof.given()

    act = {FLOOD: _flood, LISTING: _listed, SMALL_FRAMES: _small_frames}.get(kind, cell)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(_abuse(url, begun, act, proof))
        await begun.wait()
        print("begun", flush=True)


def give_way() -> None:
    """Take only what others leave: abusers are elsewhere, and have processors of their own."""
    os.nice(19)
    try:
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("19")
    except OSError:
        pass  # then the nice value counts


if __name__ == "__main__":
    give_way()
    asyncio.run(abuse(sys.argv[1], sys.argv[2], int(sys.argv[3])))
