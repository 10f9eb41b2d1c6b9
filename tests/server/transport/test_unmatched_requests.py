"""Requests that no route takes as they are: refusals like any other, HEAD, OPTIONS."""

import contextlib
import http.client
import json
import logging
import socket

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from repl_env import REPLEnv
from repl_env.errors import NotSupported
from repl_server.app import create_app
from repl_server.auth import new_key
from tests.server.conftest import ask, serving
from tests.server.toy_environments import Adder
from tests.waiting import PATIENCE, eventually

KEY, LINE = new_key("alice")


@pytest.fixture(scope="module")
def server(adders):
    return adders


@pytest.fixture(scope="module")
def keyed():
    with serving({"hashed_keys": (LINE,)}, environment=Adder) as running:
        yield running


def is_logged(caplog, told):
    """Whether the log comes to have the refusal, by its id: it is written behind the answer."""

    def found():
        fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
        return told["id"] in {each.get("id") for each in fields}

    return eventually(found)


def methods(headers) -> set[str]:
    """The methods that an answer lists as allowed."""
    return set(headers["Allow"].split(", "))


@pytest.mark.parametrize(
    "path", ["/nothing", "/", "/resets", "/contexts", "/a%0Ab%ED%A0%80/" + "c" * 5000]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PROPFIND"])
def test_an_unknown_path_is_a_refusal_like_any_other(server, caplog, method, path):
    caplog.set_level(logging.INFO, "repl_server")
    status, _, told = ask(server, method, path)

    assert (status, told["code"]) == (404, "UNKNOWN_PATH")
    assert told["message"] and len(told["message"]) < 300
    assert is_logged(caplog, told)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/reset", {"POST", "OPTIONS"}),
        ("PROPFIND", "/step", {"POST", "OPTIONS"}),
        ("POST", "/state", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/health", {"GET", "HEAD", "OPTIONS"}),
        ("PATCH", "/metrics", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/openapi.json", {"GET", "HEAD", "OPTIONS"}),
        ("GET", "/mcp", {"POST", "DELETE", "OPTIONS"}),
        ("POST", "/contexts/" + "0" * 64, {"PUT", "HEAD", "DELETE", "OPTIONS"}),
    ],
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(server, caplog, method, path, allowed):
    caplog.set_level(logging.INFO, "repl_server")
    status, headers, told = ask(server, method, path)

    assert (status, told["code"]) == (405, "WRONG_METHOD")
    assert methods(headers) == allowed
    assert is_logged(caplog, told)
    assert ask(server, "OPTIONS", path)[0] == 204
    assert methods(ask(server, "OPTIONS", path)[1]) == allowed


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/metadata", "/schema", "/metrics", "/docs", "/openapi.json"]
)
def test_head_is_get_without_its_body(server, path):
    got, headed = ask(server, "GET", path), ask(server, "HEAD", path)

    assert (headed[0], headed[2]) == (200, b"")
    assert headed[1]["Content-Type"] == got[1]["Content-Type"]


def test_head_refuses_as_get_does(server):
    status, _, body = ask(server, "HEAD", "/state", X_Session_Id="unknown")
    assert (status, body) == (404, b"")
    assert ask(server, "HEAD", "/nothing")[::2] == (404, b"")
    assert ask(server, "HEAD", "/reset")[::2] == (405, b"")
    assert ask(server, "HEAD", "/contexts/" + "0" * 64)[0] == 404


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("OPTIONS /ready HTTP/1.0", 204),
        ("GET /ready HTTP/1.0", 200),
        ("HEAD /health HTTP/1.0", 200),
        ("POST /reset HTTP/1.0", 403),
        ("GET /ready HTTP/1.1", 403),
    ],
)
def test_load_balancer_probes_without_a_host_are_answered(server, line, status):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as probe:
        probe.sendall(f"{line}\r\nConnection: close\r\n\r\n".encode())
        answer = probe.makefile("rb").read()

    assert int(answer.split()[1]) == status


def test_the_openapi_document_has_no_fallback_operations():
    paths = create_app().openapi()["paths"]
    assert {path for path, found in paths.items() if "head" in found} == {"/contexts/{sha256}"}


def test_a_socket_at_an_unknown_path_is_refused_by_http(server, caplog):
    caplog.set_level(logging.INFO, "repl_server")
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/nothing", open_timeout=PATIENCE)

    answer = refused.value.response
    told = json.loads(answer.body)
    assert (answer.status_code, told["code"]) == (404, "UNKNOWN_PATH")
    assert is_logged(caplog, told)


async def test_a_server_that_cannot_answer_a_handshake_closes_it():
    app, sent = create_app(environment=Adder), []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    place = {"scheme": "ws", "path": "/nothing", "client": ("127.0.0.1", 1)}
    await app({"type": "websocket", "headers": [], **place}, receive, send)
    assert [each["type"] for each in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("method", "path", "place"),
    [
        ("GET", "/ready/", "../ready"),
        ("POST", "/reset/", "../reset"),
        ("HEAD", f"/contexts/{'0' * 64}//?x=1", f"../../{'0' * 64}?x=1"),
    ],
)
def test_a_trailing_slash_redirects_to_the_route(server, method, path, place):
    """Without scheme, host and what stands before the path, which a proxy may have changed."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    line.request(method, path)
    with contextlib.closing(line):
        answer = line.getresponse()
        assert (answer.status, answer.headers["Location"]) == (307, place)


@pytest.mark.parametrize("path", ["//evil.example/", "/nothing/", "/%2e%2e/reset/x/", "/ws/", "//"])
def test_no_other_path_is_redirected(server, path):
    assert ask(server, "GET", path)[2]["code"] == "UNKNOWN_PATH"


def test_the_root_path_lists_the_entry_points(server):
    assert "/docs" in ask(server, "GET", "/")[2]["message"]
    assert ask(server, "GET", "/docs")[0] == 200


def test_paths_of_sockets_are_reported_as_such(server):
    status, _, told = ask(server, "GET", "/ws")
    assert (status, told["code"]) == (404, "UNKNOWN_PATH")
    assert "WebSocket" in told["message"]


def test_paths_are_not_revealed_without_a_key(keyed):
    for method, path in [("GET", "/nothing"), ("OPTIONS", "/reset"), ("POST", "/health")]:
        assert ask(keyed, method, path)[0] == 401
        assert ask(keyed, method, path, X_API_Key=KEY)[0] in (404, 204, 405)
    assert ask(keyed, "HEAD", "/health")[::2] == (200, b"")


async def test_a_client_with_a_wrong_path_gets_the_right_one(server):
    with pytest.raises(NotSupported, match="base_url") as caught:
        await REPLEnv(f"{server.url}/prefix").connect()

    assert caught.value.code == "UNKNOWN_PATH"
