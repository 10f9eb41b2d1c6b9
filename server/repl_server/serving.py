"""A server's life: it listens, serves, drains when it is told to stop, and is gone."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from .hosting import Host

# Seconds that open connections may take to end after they were told to.
_GOODBYE = 5


class Server(uvicorn.Server):
    """Uvicorn, which lets the host's running requests end before it closes connections."""

    def __init__(
        self, config: uvicorn.Config, host: Host, listening: Callable[[str], None] | None
    ) -> None:
        super().__init__(config)
        self._host, self._listening = host, listening

    @property
    def url(self) -> str:
        """Where it listens; RuntimeError before it does."""
        if not self.started:
            raise RuntimeError("the server has not started")
        name, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        if self.started and self._listening is not None:
            self._listening(self.url)

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain, then stop."""
        draining = asyncio.create_task(self._host.drain(self._host.settings.drain_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait([draining], timeout=0.1)
        await super().shutdown(sockets)


def server(app: FastAPI, listening: Callable[[str], None] | None = None) -> Server:
    """A server of `app`, as its settings say. `listening` is told where, as soon as it does."""
    host: Host = app.state.host
    settings = host.settings
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ws="websockets-sansio",
        ws_max_size=settings.message_bytes,
        ws_ping_interval=settings.ping_s,
        ws_ping_timeout=settings.ping_s,
        # Compression costs ten times what a frame costs, and memory for each connection.
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=_GOODBYE,
        server_header=False,
        log_level="warning",
        access_log=False,
    )
    return Server(config, host, listening)


def raise_open_files() -> int:
    """Let this process have as many descriptors as it may; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
