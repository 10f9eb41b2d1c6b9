"""A server's life: it listens, serves, drains when it is told to stop, and is gone."""

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

from repl_sandbox.native import libc
from repl_sandbox.native.heap_memory import trim_heap

from .limits.bounded_connection import ConnectionContext
from .limits.connection_limits import ConnectionLimits
from .sessions.manager import SessionManager
from .transport.http.request_guard import GuardContext
from .transport.uvicorn_config import config

__all__ = ["server"]

# Seconds that open connections may take to end after they were told to.
_GOODBYE = 5
# Objects made, less those gone, until the young ones are looked through for cycles: some thirty
# sessions' worth. CPython's own number, 700 or 2,000, has a server do it all the time for nearly
# nothing.
_YOUNG = 5_000
# Of those collections until the next two kinds, of which the second walks everything: a session
# that ends leaves some 170 objects and 36 KB to it, so 27 MB at most. With CPython's own numbers,
# ten each, that would be 107.
_MIDDLE, _OLD = 5, 5
# Seconds between two times that what was freed is given back. The allocator does so by itself only
# at the end of its heap, and a crowd leaves some 100 MiB in front of that; a look costs 0.3 ms and
# 60 us for each MiB that goes.
_GIVE_BACK_S = 5.0


class Server(uvicorn.Server):
    """Uvicorn, which lets the host's running requests end before it closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        manager: SessionManager,
        context: GuardContext,
        listening: Callable[[str], None] | None,
    ) -> None:
        super().__init__(config)
        self._manager, self._context, self._listening = manager, context, listening
        self._giving_back: asyncio.Task[None] | None = None

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
        if self.started:
            self._giving_back = asyncio.create_task(self._give_back())
            keys = self._context.authenticator.requires_keys
            self._manager.telemetry.event_log.record("server_started", url=self.url, keys=keys)
            if self._listening is not None:
                self._listening(self.url)

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain, then stop."""
        event_log = self._manager.telemetry.event_log
        event_log.record("server_draining", sessions=len(self._manager.sessions))
        await self._drain()
        if self._giving_back is not None:
            self._giving_back.cancel()
        await super().shutdown(sockets)
        event_log.record("server_stopped")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, and have it drain too when its terminal goes.

        Unless that is ignored: `nohup` is how a server outlives its terminal.
        """
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
        """A signal to stop: SIGHUP is as SIGTERM, with which it ends likewise."""
        super().handle_exit(signal.SIGTERM if sig == signal.SIGHUP else sig, frame)

    async def _drain(self) -> None:
        """Let what runs end; end it when Ctrl-C is pressed again, and the server at the third."""
        for seconds in (self._manager.settings.drain_s, 0.0):
            draining = asyncio.create_task(self._manager.drain(seconds))
            while not draining.done() and not self.force_exit:
                await asyncio.wait([draining], timeout=0.1)
            if draining.done():
                return
            draining.cancel()
            # Uvicorn would cancel what answers, which is no answer.
            self.force_exit = not seconds

    async def _give_back(self) -> None:
        """Have the kernel get back, again and again, what crowds of clients took for a while."""
        while True:
            await asyncio.sleep(_GIVE_BACK_S)
            if not self._manager.sessions and max(gc.get_count()[0] // _YOUNG, *gc.get_count()[1:]):
                gc.collect()  # something came since the last time, and nobody is held up
            await asyncio.to_thread(trim_heap)


def server(app: FastAPI, listening: Callable[[str], None] | None = None) -> Server:
    """A server of `app`, as its settings say. `listening` is told where, as soon as it does."""
    context: GuardContext = app.state.guard_context
    connections = ConnectionLimits(context.settings, context.telemetry)
    context.telemetry.metrics.set_gauge("connections", lambda: connections.open)
    context.telemetry.metrics.set_gauge("inbound_bytes", lambda: context.inbound.held)
    shared = ConnectionContext(context.settings, connections, context.inbound)
    made = config(app, shared, timeout_graceful_shutdown=_GOODBYE)
    return Server(made, app.state.manager, context, listening)


def hide_memory() -> None:
    """Keep this process's memory, with keys of models in it, from others of the same user.

    Nobody can attach a debugger then, or write a core.
    """
    libc.prctl(libc.PR_SET_DUMPABLE, 0)


def freeze_gc() -> None:
    """Have the garbage collector pass over what was loaded so far, which is there for good.

    A full collection, in which nobody is served, would otherwise walk some 130,000 objects and take
    50 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def raise_open_files() -> int:
    """Let this process have as many descriptors as it may; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
