"""Runs a server: listen, serve, drain on a stop signal, and exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

import repl_env
from repl_sandbox.native import libc
from repl_sandbox.native.libc import trim_heap

from .connections import ConnectionContext, ConnectionLimits
from .guard import GuardContext
from .http_limits import BoundedHTTP
from .manager import SessionManager
from .websocket_limits import BoundedWebSocket

# Configuration of uvicorn with the bounded protocols of `http_limits` and `websocket_limits`.
#
# The protocols bound connections that never become requests: idle ones, endless headers, partial
# messages, slow readers, and dead peers. An application does not see those.

# Length of the kernel's accept queue. A client that finds the queue full retries after a second;
# the event loop accepts all queued connections in one turn, at 0.2 ms each.
_BACKLOG = 1024


def config(app: ASGIApp, context: ConnectionContext, **more: Any) -> uvicorn.Config:
    """The uvicorn configuration for `app`; `more` are further arguments of `uvicorn.Config`."""
    settings = context.settings
    http = type("HTTP", (BoundedHTTP,), {"context": context})
    ws = type("WebSocket", (BoundedWebSocket,), {"context": context})
    arguments: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "http": http,
        "ws": ws,
        "ws_max_size": settings.largest_message,  # refused when announced, by its header
        "ws_ping_interval": settings.ping_s,
        "ws_ping_timeout": settings.ping_s,
        # A message of a few kilobytes could inflate to the size limit, and occupy the processor.
        "ws_per_message_deflate": False,
        "backlog": _BACKLOG,
        # `Settings.trusted_proxies` decides; uvicorn would trust all of this machine.
        "proxy_headers": False,
        "server_header": False,
        # The event log has the requests, without their query strings.
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }
    return uvicorn.Config(app, **{**arguments, **more})


__all__ = ["server"]

# Seconds open connections may take to close after the drain.
_CLOSE_TIMEOUT_S = 5
# Threshold of the youngest generation: about thirty sessions. CPython's default, 700 or 2,000,
# makes a server collect all the time and find almost nothing.
_YOUNG = 5_000
# Thresholds of the older generations; a collection of the oldest visits everything. An ended
# session leaves about 170 objects and 36 KB for it, so at most 27 MB; 107 MB with CPython's
# default, ten each.
_MIDDLE, _OLD = 5, 5
# Seconds between two trims of the heap. The allocator returns memory only at the end of its heap,
# and a crowd of clients leaves about 100 MiB before it. A trim takes 0.3 ms, and 60 us per returned
# MiB.
_TRIM_INTERVAL_S = 5.0


class Server(uvicorn.Server):
    """A uvicorn server that drains the sessions before it closes connections.

    Attributes:
        until_drain: closed when the server begins to stop. Not later: uvicorn ends the process by
            the signal that stopped it.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        manager: SessionManager,
        context: GuardContext,
        listening: Callable[[str], None] | None,
    ) -> None:
        super().__init__(config)
        self._manager, self._context, self._listening = manager, context, listening
        self._trimming: asyncio.Task[None] | None = None
        self.until_drain = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """The URL; RuntimeError before the server listens."""
        if not self.started:
            raise RuntimeError("the server has not started")
        name, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and report the URL."""
        await super().startup(sockets)
        if self.started:
            self._trimming = asyncio.create_task(self._trim_heap_periodically())
            self._record_start()
            if self._listening is not None:
                self._listening(self.url)

    def _record_start(self) -> None:
        manager = self._manager
        manager.telemetry.event_log.record(
            "server_started",
            url=self.url,
            version=repl_env.__version__,
            tier=manager.tier,
            max_sessions=manager.settings.max_sessions,
            keys=self._context.authenticator.requires_keys,
            playground=manager.has_playground,
        )

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain, then stop."""
        self.until_drain.close()
        event_log = self._manager.telemetry.event_log
        event_log.record("server_draining", sessions=len(self._manager.sessions))
        await self._drain()
        if self._trimming is not None:
            self._trimming.cancel()
        await super().shutdown(sockets)
        event_log.record("server_stopped")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, and drain also on SIGHUP, unless `nohup` has the process ignore it."""
        here = threading.current_thread() is threading.main_thread()
        if not here or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            with super().capture_signals():
                yield
            return
        before = signal.signal(signal.SIGHUP, self.handle_exit)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a stop signal; SIGHUP counts as SIGTERM."""
        super().handle_exit(signal.SIGTERM if sig == signal.SIGHUP else sig, frame)

    async def _drain(self) -> None:
        """Drain. A second Ctrl-C ends running steps, a third one the server."""
        for seconds in (self._manager.settings.drain_s, 0.0):
            draining = asyncio.create_task(self._manager.drain(seconds))
            while not draining.done() and not self.force_exit:
                await asyncio.wait([draining], timeout=0.1)
            if draining.done():
                return
            draining.cancel()
            # Set only now: uvicorn would cancel requests that could still send a reply.
            self.force_exit = not seconds

    async def _trim_heap_periodically(self) -> None:
        """Return freed memory to the kernel periodically."""
        while True:
            await asyncio.sleep(_TRIM_INTERVAL_S)
            if not self._manager.sessions and max(gc.get_count()[0] // _YOUNG, *gc.get_count()[1:]):
                gc.collect()  # objects were created, and no session is delayed
            await asyncio.to_thread(trim_heap)


def server(app: FastAPI, listening: Callable[[str], None] | None = None) -> Server:
    """The server of `app`. `listening` is called with the URL once the server listens."""
    context: GuardContext = app.state.guard_context
    connections = ConnectionLimits(context.settings, context.telemetry)
    limit = context.settings.connections
    context.telemetry.metrics.set_gauge("connections", lambda: connections.open)
    context.telemetry.metrics.set_gauge("connections_max", lambda: limit)
    context.telemetry.metrics.set_gauge("inbound_bytes", lambda: context.inbound.buffered)
    shared = ConnectionContext(context.settings, connections, context.inbound)
    made = config(app, shared, timeout_graceful_shutdown=_CLOSE_TIMEOUT_S)
    return Server(made, app.state.manager, context, listening)


def hide_memory() -> None:
    """Protect this process's memory, which holds API keys, from other processes of the same user.

    Prevents debuggers and core dumps, too.
    """
    libc.prctl(libc.PR_SET_DUMPABLE, 0)


def freeze_gc() -> None:
    """Exclude all loaded objects from garbage collection, and set the thresholds.

    A full collection would otherwise visit 130,000 objects and block all clients for 50 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def raise_open_files() -> int:
    """Raise the limit of open files to the maximum; returns that maximum."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
