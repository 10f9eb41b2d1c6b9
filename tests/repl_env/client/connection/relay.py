"""A stretch of network between a client and a server, which a test can cut.

```python
async with Relay(server.port) as network:
    env = REPLEnv(network.url)
    ...
    await network.cut()        # every connection breaks; new ones are let through
    await network.carried(9)   # so many pieces more have been passed on
```
"""

from __future__ import annotations

import asyncio
import contextlib


class Relay:
    """Passes bytes on, both ways."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._came = asyncio.Condition()
        self._pieces = 0
        self.count = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Relay:
        self._listener = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._listener.close()
        for _ in range(9):  # who was let in last has begun, and can be broken off
            await asyncio.sleep(0)
        self.snap()
        async with self._came:
            await self._came.wait_for(lambda: not self._open)

    async def cut(self) -> None:
        """Break every connection, and wait for the next one."""
        before = self.count
        self.snap()
        async with self._came:
            await self._came.wait_for(lambda: self.count > before)

    async def carried(self, pieces: int) -> None:
        """Wait until so many pieces more were passed on, either way."""
        until = self._pieces + pieces
        async with self._came:
            await self._came.wait_for(lambda: self._pieces >= until)

    def snap(self) -> None:
        """Break every connection."""
        for writer in self._open:
            writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """No byte is sent before the first one is passed on."""

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._open.add(writer)
        try:
            await self._greet(reader, writer)
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            ends.add(back)
            self._open.add(back)
            if not writer.is_closing():  # it may be broken already
                self.count += 1
                await self._tell()
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except (OSError, EOFError):
            pass  # one of both has gone away before the other was there
        finally:
            for end in ends:
                end.transport.abort()
            self._open -= ends
            await self._tell()

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                to.write(data)
                await to.drain()
                self._pieces += 1
                await self._tell()
        to.transport.abort()

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()


class Proxy(Relay):
    """A proxy of HTTP for whatever server is asked for; all of them are the one at `port`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.asked: list[str] = []

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
