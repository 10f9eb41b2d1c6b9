"""A server that is stopping: no new work begins, running work ends, then everything is closed."""

import hashlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.conftest import ask, peer, serving
from tests.server.raw_connections import request
from tests.server.server_internals import requests_in_progress
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE, eventually

TOYS = {"environment": Adder, "action": Add, "observation": Sum}
CONTEXT = b"a context of which the first half comes " * 2
HALF = len(CONTEXT) // 2
PUT = ("PUT", f"/contexts/{hashlib.sha256(CONTEXT).hexdigest()}")


@pytest.fixture
def gate():
    """The event that steps with the note "wait" wait for."""
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    Adder.closed.clear()
    yield Adder.gate
    Adder.gate.set()


def test_running_requests_end_and_no_new_ones_begin(gate):
    with serving({"drain_s": 60.0}, **TOYS) as server:
        with peer(server, named=True) as one, peer(server) as idle, peer(server) as other:
            one.open()
            one.reset()
            idle.reset()
            other.reset()
            one.send("step", {"number": 3, "note": "wait"}, id="long")
            assert Adder.waiting.acquire(timeout=60)
            server.stop()
            eventually(lambda: server.manager.draining)
            assert ask(server, "GET", "/health")[0] == 200
            assert ask(server, "GET", "/ready")[0] == 503
            assert ask(server, "GET", "/accepting")[2]["code"] == "DRAINING"
            assert ask(server, "POST", "/reset", {})[2]["code"] == "DRAINING"
            with peer(server) as late:
                assert late.take()["data"]["code"] == "DRAINING"
                assert late.closed() == 1012
            assert other.refusal("step", {"number": 1}) == "DRAINING"
            assert other.closed() == 1012
            gate.set()
            assert one.take()["data"]["observation"]["total"] == 3
            assert one.closed() == 1012
            assert idle.closed() == 1012
    assert len(Adder.closed) == 3


def test_long_running_requests_are_not_waited_for(server):
    with serving({"drain_s": 0.05}) as server:
        with peer(server, named=True) as one:
            one.open()
            one.reset()
            one.send(
                "step", {"code": "print('on', flush=True)\nwhile True: pass"}, id="s", stream=True
            )
            one.until("on\n")
            server.stop()
            assert one.closed() == 1012
    assert server.manager.sandboxes.running(server.manager.sandbox_provider.settings) is None


@pytest.mark.parametrize("how", ["close", "leave", "delete"])
def test_a_session_closed_by_its_client_during_a_step_is_not_waited_for(how):
    """`serving` fails where the server does not stop, for which it waits less than `drain_s`."""
    endless = {"code": "print('on', flush=True)\nwhile True: pass"}
    with serving({"drain_s": 1e6}) as server, ThreadPoolExecutor(1) as threads:
        with peer(server, named=how != "leave") as one:
            token = one.open()["token"] if one.named else None
            one.reset()
            (session,) = server.manager.sessions
            one.send("step", endless, **({"id": "s"} if one.named else {}))
            eventually(lambda: session.busy)
            server.stop()
            eventually(lambda: server.manager.draining)
            if how == "close":
                one.send("close", id="c")
            elif how == "delete":
                threads.submit(ask, server, "DELETE", "/session", X_Session_Id=token).result()


def test_a_request_cut_off_over_http_gets_draining():
    """The code says that the request may be sent to another server, and nothing of an episode."""
    with serving({"drain_s": 0.05}) as server, ThreadPoolExecutor(2) as threads:
        token = ask(server, "POST", "/reset", {}, X_Session_Id="new")[1]["X-Session-Id"]
        (session,) = server.manager.sessions
        endless = {"action": {"code": "while True: pass"}}
        step = threads.submit(ask, server, "POST", "/step", endless, X_Session_Id=token)
        eventually(lambda: session.busy)
        behind = threads.submit(ask, server, "GET", "/state", X_Session_Id=token)
        eventually(lambda: session.queued)
        server.stop()
        told = [each.result() for each in (step, behind)]
    assert [(status, body["code"]) for status, _, body in told] == [(503, "DRAINING")] * 2


def test_a_queued_client_gets_draining(gate):
    with serving({"max_sessions": 1, "wait_s": 60.0}, **TOYS) as server:
        with peer(server) as one:
            one.reset()
            with peer(server) as late:
                eventually(lambda: server.manager.admission.waiting == 1)
                server.stop()
                assert late.take()["data"]["code"] == "DRAINING"
                assert late.closed() == 1012


def half(server, method, path, **headers):
    """A connection on which half of a request's body has come, as the server knows."""
    coming = requests_in_progress(server.manager)
    sent = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
    length = str(len(CONTEXT))
    sent.sendall(request(method, path, content_length=length, **headers) + CONTEXT[:HALF])
    eventually(lambda: requests_in_progress(server.manager) > coming)
    return sent


def answer(sent):
    """The status and the body of what comes back until the server ends the connection."""
    with sent, sent.makefile("rb") as reader:
        head, _, body = reader.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    ("drain_s", "asked"),
    [
        (1e6, ("POST", "/reset")),  # a drain has nothing to wait for
        (1e6, ("POST", "/mcp")),
        (0.05, PUT),
    ],
)
def test_a_request_with_an_incomplete_body_gets_draining(caplog, drain_s, asked):
    with serving({"drain_s": drain_s}) as server:
        sent = half(server, *asked, content_type="application/json")
        server.stop()
        status, body = answer(sent)
        assert (status, body["code"]) == (503, "DRAINING")
    assert not [each for each in caplog.records if each.exc_info]


def test_an_interrupted_piece_of_a_context_gets_draining():
    with serving({"drain_s": 0.05}) as server:
        whole = f"bytes 0-{len(CONTEXT) - 1}/{len(CONTEXT)}"
        sent = half(server, *PUT, content_range=whole)
        server.stop()
        status, body = answer(sent)
        assert (status, body["code"]) == (503, "DRAINING")


def test_a_running_upload_is_waited_for():
    with serving({"drain_s": 1e6}) as server:
        sent = half(server, *PUT)
        server.stop()
        eventually(lambda: server.manager.draining)
        sent.sendall(CONTEXT[HALF:])
        assert answer(sent) == (201, {"sha256": PUT[1][-64:], "bytes": len(CONTEXT)})
