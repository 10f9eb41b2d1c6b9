"""A real server in a thread of the test's process, and clients that speak plain frames to it.

```python
def test_it(server):                                  # one server for all tests, sessions jailed
    with peer(server) as one:                         # OpenEnv's frames; named=True: repl-env.v1
        one.reset(context="abc")
        assert one.run("print(context)")["observation"]["result"]["stdout"] == "abc\\n"

with serving({"idle_s": 1}, environment=Counter, action=Guess) as server:
    status, headers, body = ask(server, "GET", "/ready")
```
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from repl_sandbox import Limits
from repl_server.app import create_app
from repl_server.serving import server as make_server
from repl_server.settings import Settings
from tests.server.server_internals import event_loop
from tests.waiting import PATIENCE

# Small and quick; a test that needs others says so. `grace` is long enough for any interrupt.
DEFAULTS = {
    "port": 0,
    "require": "confined",
    "recovery": "restart",
    "limits": Limits(memory="512MiB", timeout=60.0, grace=60.0),
    "wait_s": 60.0,
    "drain_s": 5.0,
}


class Serving:
    """A server that runs: where it is, and its host, for tests that look inside."""

    def __init__(self, running, app) -> None:
        self.app, self.manager, self.running = app, app.state.manager, running
        self.url = running.url
        self.port = int(self.url.rpartition(":")[2])

    def __str__(self):
        return self.url

    @property
    def loop(self):
        """The server's event loop, in a thread of its own."""
        return event_loop(self.manager)

    @property
    def connections(self):
        """The open connections of its clients."""
        return len(self.running.server_state.connections)

    def stop(self) -> None:
        """Have it stop, as SIGTERM does."""
        self.running.should_exit = True


@contextmanager
def serving(settings=None, **create) -> Iterator[Serving]:
    """A server with these settings (a `Settings`, or a dict laid over DEFAULTS), stopped after."""
    if not isinstance(settings, Settings):
        settings = Settings(**{**DEFAULTS, **(settings or {})})
    app = create_app(settings, **create)
    running = make_server(app)
    thread = threading.Thread(target=running.run, name="server")
    thread.start()
    try:
        while not running.started:
            thread.join(0.005)
            assert thread.is_alive(), "the server did not start"
        yield Serving(running, app)
    finally:
        running.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not stop"


class Peer:
    """A WebSocket that sends frames and takes replies, as they are."""

    def __init__(self, socket) -> None:
        self.socket = socket
        self.named = socket.subprotocol is not None
        self.count = 0

    def send(self, type, data=None, **more) -> None:
        """Send one request without waiting for its reply."""
        frame = {"type": type, **more}
        if data is not None:
            frame["data"] = data
        self.socket.send(json.dumps(frame))

    def take(self, timeout=PATIENCE):
        """The next frame of the server's."""
        return json.loads(self.socket.recv(timeout=timeout))

    def until(self, text):
        """Return a step's output up to and including `text`."""
        seen = ""
        while not seen.endswith(text):
            frame = self.take()
            assert frame["type"] == "output", frame
            seen += frame["data"]["text"]
        return seen

    def replies(self, *ids):
        """The replies to these requests, by id; output of steps is passed over."""
        found = {}
        while found.keys() != set(ids):
            frame = self.take()
            if frame["type"] != "output":
                found[frame["id"]] = frame
        return found

    def ask(self, type, data=None, **more):
        """Send one request and return its reply."""
        if self.named and "id" not in more:
            self.count += 1
            more["id"] = f"{type}-{self.count}"
        self.send(type, data, **more)
        return self.take()

    def open(self):
        """Begin a session in `repl-env.v1`; return the server's reply."""
        return self.ask("open", {})["data"]

    def resume(self, token):
        """Go on with one."""
        return self.ask("resume", {"token": token})["data"]

    def reset(self, **data):
        """The data of the first observation."""
        return self.ask("reset", data)["data"]

    def run(self, code, **more):
        """The result of one step."""
        return self.ask("step", {"code": code}, **more)["data"]["observation"]["result"]

    def refusal(self, type, data=None, **more):
        """The code of the error that a request comes to."""
        reply = self.ask(type, data, **more)
        assert reply["type"] == "error", reply
        return reply["data"]["code"]

    def closed(self, timeout=PATIENCE):
        """The code that the server closes the socket with, whatever comes before."""
        try:
            while True:
                self.socket.recv(timeout=timeout)
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


@contextmanager
def peer(server, *, named=False, path="/ws", host="127.0.0.1", **options) -> Iterator[Peer]:
    """A `Peer` of `server`; `named`: it speaks `repl-env.v1`, and has not begun."""
    protocols = ["repl-env.v1"] if named else None
    url = f"ws://{host}:{server.port}{path}"
    options = {"open_timeout": PATIENCE, "subprotocols": protocols, "compression": None, **options}
    with connect(url, **options) as socket:
        yield Peer(socket)


def ask(server, method, path, body=None, **headers):
    """An HTTP request; the status, the headers and the body, parsed if it is JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        f"{server.url}{path}",
        data,
        {"Content-Type": "application/json", **names},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.headers, _parsed(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, _parsed(error)


def _parsed(answer):
    text = answer.read()
    return json.loads(text) if text and "json" in answer.headers.get("Content-Type", "") else text


@pytest.fixture(scope="session")
def server():
    """One server with the defaults, whose sessions are jailed, for all tests."""
    with serving() as running:
        yield running
