"""A client that disconnects causes no server error, and nothing is kept for it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from repl_sandbox import Limits
from tests.server.conftest import ask, peer, serving
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE, eventually

_CLIENT = {"name": "raw", "version": "1"}
_BEGUN = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": _CLIENT}
# Requests that open a session.
OPENING = {
    "reset": ("/reset", {}),
    "initialize": ("/mcp", {"method": "initialize", "params": _BEGUN}),
    "create": ("/mcp", {"method": "openenv/session/create"}),
    "call": ("/mcp", {"method": "tools/call", "params": {"name": "execute", "arguments": {}}}),
}


def send(server, path, body) -> socket.socket:
    """A connection with one request on it, which was not answered yet."""
    told = json.dumps({"jsonrpc": "2.0", "id": 1, **body} if path == "/mcp" else body)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Session-Id: new\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(told)}\r\n\r\n"
    made = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    made.sendall((head + kind + told).encode())
    return made


@pytest.fixture(scope="module")
def alone():
    """A server with capacity for one session."""
    with serving({"max_sessions": 1, "limits": Limits(timeout=600.0)}) as running:
        yield running


def test_a_client_that_leaves_during_a_step_ends_its_session_without_an_error(
    server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    before = server.manager.sessions
    with peer(server) as client:
        client.reset()
        (session,) = (each for each in server.manager.sessions if each not in before)
        eventually(lambda: not session.busy)
        client.send("step", {"code": "import time; time.sleep(600)"})
        eventually(lambda: session.busy)

    eventually(lambda: session not in server.manager.sessions)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_call_without_a_session_ends_with_its_client(alone) -> None:
    """Its cell may run for 600 s, and there is no capacity for another session."""
    call = {"name": "execute", "arguments": {"code": "while True: pass"}}
    with send(alone, "/mcp", {"method": "tools/call", "params": call}):
        eventually(lambda: any(each.busy for each in alone.manager.sessions))
    eventually(lambda: alone.manager.sessions == [] and alone.manager.admission.free == 1)


@pytest.mark.parametrize(("path", "body"), OPENING.values(), ids=OPENING)
def test_a_client_that_disconnects_leaves_the_queue(
    alone, path: str, body: dict[str, object]
) -> None:
    with peer(alone) as first:
        first.reset()
        with send(alone, path, body):
            eventually(lambda: alone.manager.admission.waiting == 1)
        eventually(lambda: alone.manager.admission.waiting == 0)
        assert first.run("1")["value"] == "1"
    eventually(lambda: alone.manager.sessions == [])


def test_a_session_whose_client_never_comes_back_ends_before_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session id of a client that disconnected before it received the id is unknown."""
    monkeypatch.setattr("repl_server.manager.CONFIRM_S", 0.05)
    monkeypatch.setattr("repl_server.manager.SWEEP_S", 0.01)
    body: dict[str, object] = {"method": "initialize", "params": _BEGUN}
    path = "/mcp"
    with serving({"idle_s": 600.0}) as server:
        told = {"jsonrpc": "2.0", "id": 1, **body}
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        while True:  # until the note comes in time
            token = ask(server, "POST", path, told)[1]["Mcp-Session-Id"]
            if ask(server, "POST", path, note, Mcp_Session_Id=token)[0] == 202:
                break
        (known,) = (each for each in server.manager.sessions if each.token == token)
        with send(server, path, body) as gone:
            assert gone.recv(1)  # the answer, which is not read
        eventually(lambda: len(server.manager.sessions) == 1)
        assert server.manager.sessions == [known]


def _wait() -> None:
    Adder.waiting.release()
    assert Adder.gate.wait(60)


class Unmade(Adder):
    """Is not made while the gate is closed."""

    def __init__(self) -> None:
        _wait()
        super().__init__()


class Unbegun(Adder):
    """Is not reset while the gate is closed."""

    def reset(self, seed=None, episode_id=None, start=0):  # type: ignore[override]
        _wait()
        return super().reset(start=start)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed; open in the end."""
    Adder.gate.clear()
    Adder.closed.clear()
    yield Adder.gate
    Adder.gate.set()


@pytest.mark.parametrize(("path", "body"), OPENING.values(), ids=OPENING)
def test_no_session_is_made_for_a_client_that_left(
    gate, path: str, body: dict[str, object]
) -> None:
    with serving(environment=Unmade, action=Add, observation=Sum) as server:
        with send(server, path, body):
            assert Adder.waiting.acquire(timeout=PATIENCE)
        eventually(lambda: server.connections == 0)
        gate.set()
        eventually(lambda: server.manager.admission.open == 0)
        assert server.manager.sessions == [] and len(Adder.closed) == 1


def test_no_session_is_kept_for_a_client_that_left_during_its_reset(gate) -> None:
    with serving(environment=Unbegun, action=Add, observation=Sum) as server:
        with send(server, "/reset", {}):
            assert Adder.waiting.acquire(timeout=PATIENCE)
            (session,) = server.manager.sessions
        eventually(lambda: session.closing)
        gate.set()
        eventually(lambda: server.manager.sessions == [])
