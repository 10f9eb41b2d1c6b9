"""Guests: clients with common behaviour that are killed at any point."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from .raw_socket import Refused, Wire, connected, result_of
from .server_process import Served

# Seconds that a guest may rest between two things that it does: a score of guests is not to keep
# the machine so busy that abusers make no difference.
_REST = 1.0
_ENDLESS = 10**6  # steps of an episode, more than are ever made
# Seconds that a session outlives its socket. Short, because a soak waits for them to pass; a busy
# machine may take longer to connect.
GRACE = 2.0
# Seconds for anything to be answered: long past what is ever waited for, but no hang.
_PATIENCE = 180.0
# Uploads: few, so that the server's store is as full after a short soak as after a long one.
_UPLOADS = {
    hashlib.sha256(data).hexdigest(): data for data in (b"%d" % n * 200_000 for n in range(4))
}
_PIECE = 300_000
_ADD = "total += 1\ntotal"
_SLOWLY = "import time\ntime.sleep(0.02)\ntotal += 1\ntotal"


class Unlike(Exception):
    """A session differs from its model."""


class Guest:
    """One client after another; the session of each must count as expected."""

    def __init__(self, served: Served, seed: str, done: Counter[str]) -> None:
        self._served = served
        self._random = random.Random(seed)
        self._done = done
        self._wire: Wire | None = None
        self._total = 0

    async def live(self, end: float, wanted: Collection[str] = ()) -> None:
        """Do one thing after another until the time is up, then leave.

        Until then or later, when some guest has done each of the `wanted` things.
        """
        acts, weights = zip(*_ACTS, strict=True)
        try:
            while time.monotonic() < end or not self._done.keys() >= {*wanted}:
                (act,) = self._random.choices(acts, weights)
                async with asyncio.timeout(_PATIENCE):
                    await act(self)
                self._done[act.__name__.strip("_")] += 1
                await asyncio.sleep(self._random.random() * _REST)
            await self.leave()
        finally:
            if self._wire is not None:
                self._wire.cut()

    # ── in a session ──────────────────────────────────────────────────────────────────────────

    async def add(self) -> None:
        wire = await self._there()
        self._total += 1
        _expect(await wire.run(_ADD), str(self._total))

    async def print(self) -> None:
        wire = await self._there()
        size = self._random.randrange(10, 300_000)
        result = await wire.run(f"print('x' * {size})\nlen('{'y' * 9}')", stream=True)
        _expect(result, "9")

    async def raise_error(self) -> None:
        result = await (await self._there()).run("1 / 0")
        if result["success"] or "ZeroDivisionError" not in result["exception"]:
            raise Unlike(f"1 / 0 came to {result}")

    async def look(self) -> None:
        wire = await self._there()
        state, names = await wire.ask("state"), await wire.ask("variables")
        if "total" not in names["names"] or "total" not in state["namespace_keys"]:
            raise Unlike(f"total is in neither of {names} and {state}")

    async def time_out(self) -> None:
        result = await (await self._there()).run("while True: pass", timeout_s=0.05)
        if result["success"]:
            raise Unlike("an endless loop has ended")

    async def cancel(self) -> None:
        wire = await self._there()
        step = await wire.send("step", {"code": "import time\ntime.sleep(60)"})
        await self._moment()
        await wire.send("cancel", {"request": step})
        try:
            result = result_of(await wire.reply(step))
        except Refused as refused:
            # The server gives up a step whose interrupt does not take effect in time.
            if refused.code != "EXECUTION_ERROR":
                raise
        else:
            if result["success"]:
                raise Unlike("what was cancelled has ended well")

    async def reset(self) -> None:
        await self._begin(await self._there(), context="c" * self._random.randrange(1_000_000))

    async def reset_with_upload(self) -> None:
        name = self._random.choice(list(_UPLOADS))
        await self._upload(name)
        wire = await self._there()
        await self._begin(wire, uploads={"context": {"sha256": name, "type": "text"}})
        code = "import hashlib\nhashlib.sha256(context.encode()).hexdigest()"
        _expect(await wire.run(code), repr(name))

    async def ask(self) -> None:
        """Questions of a cell to the server's model, some of which have to wait for others."""
        prompts = [
            f"question {self._random.random()}" for _ in range(self._random.randrange(1, 20))
        ]
        asked = f"list(map(str, llm_query_batched({prompts})))"
        _expect(await (await self._there()).run(asked), repr(list(map(str.upper, prompts))))

    async def branch(self) -> None:
        wire = await self._there()
        before = time.monotonic()
        branch = await self._resumed((await wire.ask("branch"))["token"], before)
        if branch is not None:
            _expect(await branch.run(_ADD), str(self._total + 1))
            await self._part(branch)
        _expect(await wire.run("total"), str(self._total))

    # ── what clients die of ───────────────────────────────────────────────────────────────────

    async def cut(self) -> None:
        """The connection drops between steps, and the client resumes."""
        wire = await self._there()
        if await self._resume(wire):
            await self.add()

    async def cut_amid(self) -> None:
        """The client disconnects during a step, which must have run once when the request is
        repeated.
        """
        wire = await self._there()
        step = {"code": _SLOWLY}
        asked = await wire.send("step", step)
        await self._moment()
        if await self._resume(wire):
            self._total += 1
            _expect(result_of(await self._wire.ask("step", step, id=asked)), str(self._total))

    async def vanish(self) -> None:
        """The client ends with pending requests, and no client resumes the session."""
        wire = await self._there()
        kind, data = self._random.choice(_LAST_WORDS)
        await wire.send(kind, data)
        await self._moment()
        wire.cut()
        self._wire = None

    async def leave(self) -> None:
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    async def vanish_early(self) -> None:
        """The client ends before authentication: during a handshake, or its first frame."""
        place = urlsplit(self._served.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        words = self._random.choice(_FIRST_WORDS)
        writer.write(words[: self._random.randrange(len(words))])
        await self._moment()
        writer.transport.abort()
        with suppress(ConnectionError):  # the server may have been first to end it
            await reader.read()

    async def vanish_uploading(self) -> None:
        place = urlsplit(self._served.url)
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        name, data = self._random.choice(list(_UPLOADS.items()))
        head = f"PUT /contexts/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data[: self._random.randrange(len(data))])
        await self._moment()
        writer.transport.abort()

    async def openenv(self) -> None:
        """A client of OpenEnv's, which says good-bye or does not."""
        connection = await connected(self._served.url)
        for frame in _OPENENV[: self._random.randrange(1, len(_OPENENV) + 1)]:
            await connection.send(json.dumps(frame))
            if frame["type"] != "close" and self._random.random() < 0.9:
                await connection.recv()
        connection.transport.abort()

    async def http(self) -> None:
        for path in ("/health", "/metrics"):
            status, _ = await asyncio.to_thread(self._served.request, "GET", path)
            if status != 200:
                raise Unlike(f"{path} came to {status}")

    # ── how ───────────────────────────────────────────────────────────────────────────────────

    async def _there(self) -> Wire:
        """The socket of a client, with a session that counts."""
        if self._wire is None:
            wire = await Wire.open(self._served.url)
            await self._begin(wire)
            self._wire = wire
        return self._wire

    async def _resume(self, wire: Wire) -> bool:
        """Drop the connection and take the session up by another; False if that came too late."""
        wire.cut()
        self._wire = None
        self._wire = await self._resumed(wire.token, time.monotonic())
        return self._wire is not None

    async def _resumed(self, token: str, since: float) -> Wire | None:
        """A session that has no socket since then; None if its time was over."""
        try:
            return await Wire.resume(self._served.url, token)
        except Refused as refused:
            if refused.code != "UNKNOWN_SESSION" or time.monotonic() - since < GRACE:
                raise
            return None

    async def _begin(self, wire: Wire, **more: Any) -> None:
        await wire.ask("reset", {"max_iterations": _ENDLESS, **more})
        self._total = 0
        await wire.run("total = 0")

    async def _upload(self, name: str) -> None:
        """In pieces; others may be uploading the same."""
        data, first = _UPLOADS[name], 0
        while True:
            piece = data[first : first + _PIECE]
            span = f"bytes {first}-{first + len(piece) - 1}/{len(data)}"
            status, told = await asyncio.to_thread(
                self._served.request, "PUT", f"/contexts/{name}", piece, **{"Content-Range": span}
            )
            if status in (200, 201):
                return
            if status not in (202, 409):
                raise Unlike(f"a piece of an upload came to {status}: {told}")
            first = told["received"]

    async def _part(self, wire: Wire) -> None:
        if self._random.random() < 0.5:
            wire.cut()
        else:
            await wire.close()

    async def _moment(self) -> None:
        await asyncio.sleep(self._random.random() * 0.03)


def forget_uploads(served: Served) -> None:
    """Have the server forget what guests have uploaded."""
    for name in _UPLOADS:
        served.request("DELETE", f"/contexts/{name}")


def _expect(result: dict[str, Any], value: str) -> None:
    if result["value"] != value:
        raise Unlike(f"{result} in place of {value}")


_LAST_WORDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("step", {"code": _SLOWLY}),
    ("step", {"code": "while True: pass"}),
    ("step", {"code": "for _ in range(100): print('x' * 10_000)"}),
    ("step", {"code": "llm_query_batched(['too late'] * 20)"}),
    ("step", {"code": "import os\nos.fork()\nwhile True: pass"}),
    ("reset", {"context": "c" * 500_000}),
    ("branch", {}),
    ("state", {}),
)
_HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: repl-env.v1\r\n\r\n"
)
_FIRST_WORDS = (
    _HANDSHAKE,
    # A masked frame that announces more than comes.
    _HANDSHAKE + b"\x81\xff" + (1 << 20).to_bytes(8, "big") + b"mask" + b"x" * 1000,
    b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"{" * 1000,
)
_OPENENV: tuple[dict[str, Any], ...] = (
    {"type": "reset", "data": {}},
    {"type": "step", "data": {"code": "x = 1"}},
    {"type": "state"},
    {"type": "step", "data": {"code": "print(x)"}},
    {"type": "close"},
)
_Act: TypeAlias = Callable[[Guest], Coroutine[Any, Any, None]]
# Each action with its frequency, out of about a hundred.
_ACTS: tuple[tuple[_Act, int], ...] = (
    (Guest.add, 26),
    (Guest.print, 8),
    (Guest.raise_error, 4),
    (Guest.look, 5),
    (Guest.time_out, 3),
    (Guest.cancel, 3),
    (Guest.reset, 5),
    (Guest.reset_with_upload, 4),
    (Guest.ask, 4),
    (Guest.branch, 4),
    (Guest.cut, 6),
    (Guest.cut_amid, 6),
    (Guest.vanish, 8),
    (Guest.leave, 4),
    (Guest.vanish_early, 4),
    (Guest.vanish_uploading, 2),
    (Guest.openenv, 6),
    (Guest.http, 2),
)
