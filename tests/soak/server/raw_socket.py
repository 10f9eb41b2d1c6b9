"""`Wire`: one socket that speaks `repl-env.v1`, frame by frame (docs/endpoint.md)."""

from __future__ import annotations

import json
import uuid
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from .server_process import GUEST


class Refused(Exception):
    """A reply that is an error; `code` is one of docs/endpoint.md."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.code = data["code"]
        super().__init__(f"{data['code']}: {data['message']}")


async def connected(url: str, *subprotocols: str, key: str = GUEST) -> ClientConnection:
    """A socket of the server, before the first frame."""
    return await connect(
        f"{url.replace('http', 'ws', 1)}/ws",
        subprotocols=[Subprotocol(name) for name in subprotocols] or None,
        additional_headers={"Authorization": f"Bearer {key}"},
        compression=None,
        max_size=None,
        ping_interval=None,
        open_timeout=60,
        proxy=None,
    )


class Wire:
    """A session by its socket; `token` is what resumes it, `url` its server."""

    def __init__(self, connection: ClientConnection, url: str = "") -> None:
        self.connection, self.url = connection, url
        self.token = ""

    @classmethod
    async def open(cls, url: str, key: str = GUEST) -> Wire:
        """A new session."""
        return await cls._began(url, "open", {}, key)

    @classmethod
    async def resume(cls, url: str, token: str) -> Wire:
        """The session of `token`."""
        return await cls._began(url, "resume", {"token": token})

    @classmethod
    async def _began(cls, url: str, kind: str, data: dict[str, Any], key: str = GUEST) -> Wire:
        wire = cls(await connected(url, "repl-env.v1", key=key), url)
        try:
            wire.token = (await wire.ask(kind, data))["token"]
        except BaseException:
            wire.cut()
            raise
        return wire

    async def send(
        self, kind: str, data: dict[str, Any], id: str | None = None, **more: Any
    ) -> str:
        """Ask, and wait for nothing; the request's id, a new one if none is given."""
        named = id or uuid.uuid4().hex
        await self.connection.send(json.dumps({"type": kind, "id": named, "data": data, **more}))
        return named

    async def reply(self, id: str) -> dict[str, Any]:
        """The data of the reply to `id`; output, and replies to others, are passed over."""
        while True:
            frame = json.loads(await self.connection.recv())
            if frame.get("id") == id and frame["type"] != "output":
                break
        if frame["type"] == "error":
            raise Refused(frame["data"])
        return dict(frame["data"])

    async def ask(self, kind: str, data: dict[str, Any] | None = None, **more: Any) -> Any:
        """The data of the reply."""
        return await self.reply(await self.send(kind, data or {}, **more))

    async def run(self, code: str, **more: Any) -> dict[str, Any]:
        """The result of a step."""
        return result_of(await self.ask("step", {"code": code}, **more))

    def cut(self) -> None:
        """Let the connection drop, as a client that dies does."""
        self.connection.transport.abort()

    async def close(self) -> None:
        """Take leave of the session, and wait until the server has closed the socket."""
        await self.send("close", {})
        await self.connection.wait_closed()


def result_of(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the code from the reply to a step."""
    return dict(reply["observation"]["result"])
