"""A server of docs/endpoint.md whose every word a test writes, on a real socket.

```python
async def story(peer):
    await peer.session()                          # answers `open`, or `resume`
    request = await peer.next("reset")
    await peer.reply(request, observation())
    peer.drop()

with Scripted(story, another) as server:          # the first connection, and all that follow
    env = REPLEnv(server.url)
    ...
    assert [frame["type"] for frame in server.frames] == ["open", "reset", ...]
```
A story that fails fails the test, when the server is left.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from repl_env.client.protocol import REPLIES, SUBPROTOCOL

Story: TypeAlias = Callable[["Peer"], Awaitable[None]]

LIMITS = {"timeout_s": 30, "message_bytes": 1 << 20, "context_bytes": 1 << 30, "idle_s": 900}


def observation(stdout: str = "", *, done: bool = False, **metadata: Any) -> dict[str, Any]:
    """The data of an observation, as the server sends it."""
    inner = {"result": {"stdout": stdout}, "iteration": 1, "metadata": metadata}
    return {"observation": inner, "reward": 0.0, "done": done}


class Peer:
    """The server's side of one connection."""

    def __init__(
        self, connection: ServerConnection, note: Callable[[dict[str, Any]], None]
    ) -> None:
        self.connection = connection
        self._note = note

    @property
    def headers(self) -> Headers:
        """The headers of the handshake."""
        return self.connection.request.headers

    async def next(self, kind: str | None = None) -> dict[str, Any]:
        """The next frame, which must be of this type."""
        frame: dict[str, Any] = json.loads(await self.connection.recv())
        self._note(frame)
        assert kind is None or frame["type"] == kind, frame
        return frame

    async def send(self, frame: dict[str, Any] | str | bytes) -> None:
        """One message, unparsed."""
        await self.connection.send(json.dumps(frame) if isinstance(frame, dict) else frame)

    async def reply(self, request: dict[str, Any], data: dict[str, Any]) -> None:
        """Return the reply to such a request."""
        named = {"id": request["id"]} if "id" in request else {}
        await self.send({"type": REPLIES[request["type"]], **named, "data": data})

    async def refuse(self, request: dict[str, Any] | None, code: str, **more: Any) -> None:
        """An error; None: about no request."""
        named = {"id": request["id"]} if request and "id" in request else {}
        data = {"message": f"because {code}", "code": code, "id": "log1", **more}
        await self.send({"type": "error", **named, "data": data})

    async def output(self, request: dict[str, Any], text: str, **more: Any) -> None:
        """A piece of what a step prints."""
        data = {"stream": "stdout", "text": text, **more}
        await self.send({"type": "output", "id": request["id"], "data": data})

    async def session(self, *, limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Answer the first frame, and return it."""
        request = await self.next()
        assert request["type"] in {"open", "resume"}
        await self.answer(request, limits=limits, **more)
        return request

    async def answer(
        self, request: dict[str, Any], *, limits: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Say that the socket has the session."""
        said = {"session_id": "s1", "token": "t1", "resumed": request["type"] == "resume"}
        said |= {"grace_s": 60, "running": None, "limits": LIMITS | (limits or {})} | more
        await self.reply(request, said)

    async def serve(self, *stdouts: str) -> None:
        """Answer a reset, and each step with the next text, until the client goes."""
        texts = iter(stdouts)
        while (request := await self.next())["type"] != "close":
            text = next(texts, "") if request["type"] == "step" else ""
            await self.reply(request, observation(text))

    def drop(self) -> None:
        """The connection breaks without a close frame."""
        self.connection.transport.abort()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """The connection is closed as WebSockets are."""
        await self.connection.close(code, reason)

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        await self.connection.wait_closed()


async def served(peer: Peer) -> None:
    """A session in which every step prints nothing."""
    await peer.session()
    await peer.serve()


async def begun(peer: Peer, **session: Any) -> None:
    """The first connection of most stories: a session, and an episode in it."""
    await peer.session(**session)
    await peer.reply(await peer.next("reset"), observation())


class Scripted:
    """The n-th connection gets the n-th story, the last one all that follow."""

    def __init__(
        self,
        *stories: Story,
        plain: bool = False,
        answer: Callable[[Request], Response | None] | None = None,
        max_size: int = 1 << 25,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._stories = stories or (served,)
        self._answer = answer
        self._options: dict[str, Any] = {"max_size": max_size}
        if not plain:
            self._options["subprotocols"] = [SUBPROTOCOL]
        self.port = port
        if tls is not None:
            self._options["ssl"] = tls
        self.connections: list[ServerConnection] = []
        self._failures: list[BaseException] = []
        self._count = 0
        self.handshakes: list[Headers] = []
        self.frames: list[dict[str, Any]] = []
        self._came = threading.Condition()

    @property
    def url(self) -> str:
        return f"http{'s' if 'ssl' in self._options else ''}://127.0.0.1:{self.port}"

    @property
    def kinds(self) -> list[str]:
        """The types of all frames that came."""
        return [frame["type"] for frame in self.frames]

    async def until(self, kind: str) -> None:
        """Wait until the last frame that came is of this type."""
        await asyncio.to_thread(self._wait, lambda: self.kinds[-1:] == [kind])

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._came:
            assert self._came.wait_for(condition, 60)

    def _note(self, frame: dict[str, Any]) -> None:
        with self._came:
            self.frames.append(frame)
            self._came.notify_all()

    def __enter__(self) -> Scripted:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-server")
        self._thread.start()
        self._server = self._run(self._start())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._failures and error is None:
            raise self._failures[0]

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> Server:
        return await serve(
            self._tell,
            "127.0.0.1",
            self.port,
            process_request=self._greet,
            create_connection=self._connect,
            ping_interval=None,
            close_timeout=0.2,
            compression=None,
            **self._options,
        )

    async def _stop(self) -> None:
        self._server.close()
        for _ in range(9):  # who was let in last is connected by now
            await asyncio.sleep(0)
        for connection in self.connections:
            # The client may wait until the server disconnects. A TLS connection has no transport
            # before the handshake.
            if connection.state is State.CONNECTING and hasattr(connection, "transport"):
                connection.transport.abort()
        await self._server.wait_closed()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def _connect(self, *arguments: Any, **options: Any) -> ServerConnection:
        self.connections.append(ServerConnection(*arguments, **options))
        return self.connections[-1]

    async def _greet(self, _: ServerConnection, request: Request) -> Response | None:
        self.handshakes.append(request.headers)
        return None if self._answer is None else self._answer(request)

    async def _tell(self, connection: ServerConnection) -> None:
        story = self._stories[min(self._count, len(self._stories) - 1)]
        self._count += 1
        try:
            await story(Peer(connection, self._note))
        except ConnectionClosed:
            return
        except Exception as error:
            self._failures.append(error)
            raise


@contextmanager
def kept_port() -> Iterator[int]:
    """A reserved port without a listener, until the test starts one."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def answered(status: int, body: bytes = b"", **headers: str) -> Callable[[Request], Response]:
    """An HTTP response in place of a WebSocket."""
    return lambda _: Response(status, HTTPStatus(status).phrase, Headers(headers), body)
