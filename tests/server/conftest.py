"""A real server in a thread of the test's process, and clients that speak plain frames to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

from repl_sandbox import Limits
from repl_server.app import create_app
from repl_server.serving import server
from repl_server.settings import Settings

# Small and quick; a test that needs others says so.
DEFAULTS = {
    "port": 0,
    "require": "confined",
    "recovery": "restart",
    "limits": Limits(memory="512MiB", timeout=20.0, grace=0.3),
}


class Serving:
    """A server that runs: where it is, and its host for tests that look inside."""

    def __init__(self, running, app) -> None:
        self.app, self.host = app, app.state.host
        self.running = running
        self.url: str = running.url
        self.port = int(self.url.rpartition(":")[2])
        self.ws = f"ws://127.0.0.1:{self.port}/ws"

    def __str__(self) -> str:
        return self.url


@contextmanager
def serving(settings=None, **create) -> Iterator[Serving]:
    """A server with these settings (a `Settings`, or a dict laid over DEFAULTS), stopped after."""
    if not isinstance(settings, Settings):
        settings = Settings(**{**DEFAULTS, **(settings or {})})
    app = create_app(settings, **create)
    running = server(app)
    thread = threading.Thread(target=running.run, name="server")
    thread.start()
    try:
        while not running.started:
            thread.join(0.005)
            assert thread.is_alive(), "the server did not start"
        yield Serving(running, app)
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


class Peer:
    """A socket that sends frames and takes replies, as they are."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.count = 0

    def send(self, type, data=None, **more):
        frame = {"type": type, **more}
        if data is not None:
            frame["data"] = data
        self.socket.send(json.dumps(frame))

    def take(self, timeout=20):
        return json.loads(self.socket.recv(timeout=timeout))

    def ask(self, type, data=None, **more):
        """One request and its reply."""
        if self.socket.subprotocol is not None and "id" not in more:
            self.count += 1
            more["id"] = f"{type}-{self.count}"
        self.send(type, data, **more)
        return self.take()

    def reset(self, **data):
        return self.ask("reset", data)["data"]

    def run(self, code, **more):
        """One step; its data."""
        return self.ask("step", {"code": code}, **more)["data"]

    def close(self):
        self.socket.close()


@contextmanager
def peer(server, *, named=False, path="/ws", **options):
    """A `Peer` of `server`; `named`: it speaks `repl-env.v1`, and has not begun."""
    protocols = ["repl-env.v1"] if named else None
    url = f"ws://127.0.0.1:{server.port}{path}"
    with connect(url, subprotocols=protocols, compression=None, **options) as socket:
        yield Peer(socket)


@pytest.fixture(scope="module")
def plain_server():
    """One server with the defaults for all tests of a module."""
    with serving() as server:
        yield server
