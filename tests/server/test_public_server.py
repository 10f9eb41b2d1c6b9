"""Without a key one gets nothing, with one what is one's own, and floods harm who sends them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from repl_server.app import create_app
from repl_server.auth import new_key
from repl_server.settings import Settings
from repl_server.tenants import Tenant, TenantQuota
from tests.server.conftest import ask, peer, serving
from tests.server.raw_connections import frame
from tests.server.server_internals import cpu_bucket
from tests.server.toy_environments import Add, Adder, Sum
from tests.waiting import PATIENCE, eventually

ALICE, ALICE_LINE = new_key("alice")
BOB, BOB_LINE = new_key("bob")
MIB = 1 << 20
TOYS = {"environment": Adder, "action": Add, "observation": Sum}
KEYED = {"hashed_keys": (ALICE_LINE, BOB_LINE), "max_sessions": 6}


def as_owner(key: str) -> dict:
    """The headers of a socket with a key."""
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


@pytest.fixture(scope="module")
def keyed():
    """A server with keys."""
    quota = TenantQuota(sessions=3)
    with serving({**KEYED, "quota": quota}) as running:
        yield running


@pytest.fixture(scope="module")
def open_to_all():
    """A server for this machine, without keys."""
    # As users write it, not as browsers do.
    origins = ("https://App.example:443/",)
    with serving({"message_bytes": MIB, "origins": origins}) as one:
        yield one


def routes_of(app) -> list[tuple[str, str]]:
    """Each route of the application, as a request for it."""
    described = [
        (method.upper(), re.sub(r"{\w+}", "0" * 64, path))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method != "head"  # whose answers have no body
    ]
    return [*described, ("GET", "/openapi.json"), ("GET", "/"), ("GET", "/nowhere")]


def connected(server, path: str = "/ws", **options):
    """A socket, before its first frame."""
    url = f"ws://127.0.0.1:{server.port}{path}"
    return connect(url, open_timeout=PATIENCE, **options)


def leave_cpu(server, name: str, seconds: float) -> None:
    """Book CPU time of a tenant until this much is left, whatever was used to come this far."""
    bucket = cpu_bucket(server.manager, Tenant("key", name))
    bucket.owe(bucket.level - seconds)


def sessions_of(server, name: str) -> int:
    """The number of a tenant's sessions."""
    return sum(session.tenant.name == name for session in server.manager.sessions)


@pytest.mark.parametrize(
    "headers", [{}, {"X_API_Key": "repl_wrong"}, {"Authorization": "Bearer repl_wrong"}]
)
def test_only_health_answers_without_a_key(keyed, headers) -> None:
    answers = {route: ask(keyed, *route, **headers)[0] for route in routes_of(keyed.app)}

    assert answers.pop(("GET", "/health")) == 200
    assert answers.pop(("GET", "/accepting")) == 200
    assert answers.pop(("GET", "/")) == 200  # the page, which asks for a key
    assert {path for _, path in answers} >= {"/reset", "/step", "/state", "/session", "/metrics"}
    assert set(answers.values()) == {401}


@pytest.mark.parametrize("options", [{}, as_owner("repl_wrong")])
@pytest.mark.parametrize("path", ["/ws", "/mcp", "/nowhere"])
def test_no_socket_opens_without_a_key(keyed, options, path) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connected(keyed, path, **options)

    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["code"] == "UNAUTHENTICATED"


def test_a_key_is_accepted_by_routes_and_sockets(keyed) -> None:
    with peer(keyed, **as_owner(ALICE)) as alice:
        alice.reset()
        assert alice.run("print(6 * 7)")["stdout"] == "42\n"
    status, _, ready = ask(keyed, "GET", "/ready", X_API_Key=BOB)
    assert status == 200
    assert ready["ready"]


def test_pages_of_other_sites_reach_neither_sockets_nor_routes(open_to_all) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connected(open_to_all, origin=Origin("https://evil.example"))
    assert refused.value.response.status_code == 403
    for method, path in (("POST", "/reset"), ("POST", "/step"), ("GET", "/state")):
        status, _, told = ask(open_to_all, method, path, Origin="https://evil.example")
        assert (status, told["code"]) == (403, "FORBIDDEN")


def test_dns_rebinding_is_refused_on_all_routes(open_to_all) -> None:
    name = f"evil.example:{open_to_all.port}"
    for headers in ({}, {"Origin": f"http://{name}"}):
        assert ask(open_to_all, "POST", "/reset", {}, Host=name, **headers)[0] == 403
        assert ask(open_to_all, "GET", "/metrics", Host=name, **headers)[0] == 403


def test_a_page_that_the_operator_allowed_may_send_requests(open_to_all) -> None:
    asks = {"Origin": "https://app.example", "Access_Control_Request_Method": "POST"}
    status, headers, _ = ask(open_to_all, "OPTIONS", "/reset", **asks)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
    status, headers, _ = ask(open_to_all, "GET", "/ready", Origin="https://app.example")
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
    foreign = {**asks, "Origin": "https://evil.example"}
    assert ask(open_to_all, "OPTIONS", "/reset", **foreign)[0] == 400
    with connected(open_to_all, origin=Origin("https://app.example")):
        pass


def test_the_token_of_another_tenant_is_unknown(keyed) -> None:
    with peer(keyed, named=True, **as_owner(ALICE)) as alice:
        token = alice.open()["token"]
        alice.reset()
        alice.run("secret = 42")
        told = []
        for tried in (token, "made-up"):
            with peer(keyed, named=True, **as_owner(BOB)) as bob:
                refused = bob.ask("resume", {"token": tried})["data"]
                assert refused["code"] == "UNKNOWN_SESSION"
                assert bob.closed() == 4404
            headers = {"X_API_Key": BOB, "X_Session_Id": tried}
            for method, path, body in (
                ("POST", "/step", {"action": {"code": "secret"}}),
                ("POST", "/reset", {}),
                ("GET", "/state", None),
                ("DELETE", "/session", None),
            ):
                status, _, data = ask(keyed, method, path, body, **headers)
                assert (status, data["code"]) == (404, "UNKNOWN_SESSION")
            told.append({**refused, "id": ""})

        assert told[0] == told[1]
        assert alice.run("print(secret)")["stdout"] == "42\n"
        alice.send("close", {}, id="last")


def test_the_hash_of_another_tenant_s_context_is_unknown(keyed) -> None:
    document = b"only alice has this"
    name = hashlib.sha256(document).hexdigest()
    path = f"/contexts/{name}"
    assert ask(keyed, "PUT", path, document, X_API_Key=ALICE)[0] == 201
    reference = {"context": {"sha256": name, "type": "text"}}
    with peer(keyed, **as_owner(BOB)) as bob:
        refused = bob.ask("reset", {"uploads": reference})["data"]
        assert refused["code"] == "UNKNOWN_CONTEXT"
        made_up = {"context": {"sha256": "0" * 64, "type": "text"}}
        unknown = bob.ask("reset", {"uploads": made_up})["data"]
        assert unknown["message"].replace("0" * 64, name) == refused["message"]
    assert ask(keyed, "DELETE", path, X_API_Key=BOB)[0] == 404
    with peer(keyed, **as_owner(ALICE)) as alice:
        alice.reset(uploads=reference)
        assert alice.run("print(context)")["stdout"] == "only alice has this\n"


def test_a_tenant_s_sessions_are_bounded_and_another_s_are_not_affected(keyed) -> None:
    eventually(lambda: not sessions_of(keyed, "bob"))
    with (
        peer(keyed, named=True, **as_owner(BOB)) as one,
        peer(keyed, named=True, **as_owner(BOB)) as two,
        peer(keyed, named=True, **as_owner(BOB)) as three,
        peer(keyed, named=True, **as_owner(BOB)) as four,
    ):
        for each in (one, two, three):
            each.open()
        assert four.refusal("open", {}) == "QUOTA_EXCEEDED"
        one.send("close", {}, id="last")
        assert one.closed() == 1000
        eventually(lambda: sessions_of(keyed, "bob") == 2)
        assert "token" in four.open()
        with peer(keyed, named=True, **as_owner(ALICE)) as alice:
            assert "token" in alice.open()
            alice.send("close", {}, id="last")
        for each in (two, three, four):
            each.send("close", {}, id="last")
    eventually(lambda: not sessions_of(keyed, "bob"))


@pytest.mark.parametrize("flood", ['{"type":"state"}', "[1, 2]", "no json", b"binary", ""])
def test_a_flood_of_frames_affects_its_sender_alone(flood) -> None:
    """Malformed frames count too, and a client that stops sending is served again."""
    with serving({**KEYED, "quota": TenantQuota(requests_per_second=50)}, **TOYS) as server:
        with peer(server, **as_owner(BOB)) as bob, peer(server, **as_owner(ALICE)) as alice:
            codes = []
            while "RATE_LIMITED" not in codes:
                for _ in range(25):
                    bob.socket.send(flood)
                codes += [bob.take()["data"].get("code") for _ in range(25)]
                assert len(codes) < 20_000
            alice.reset()
            eventually(lambda: bob.ask("state")["type"] == "state")


def test_cpu_time_that_is_used_up_refuses_the_next_step() -> None:
    with serving({**KEYED, "quota": TenantQuota(cpu_seconds_per_hour=10)}) as server:
        with peer(server, **as_owner(BOB)) as bob, peer(server, **as_owner(ALICE)) as alice:
            bob.reset()
            bob.run("import time\nend = time.process_time() + 0.5")
            leave_cpu(server, "bob", 1.2)
            bob.run("while time.process_time() < end: pass")
            reply = bob.ask("step", {"code": "1"})["data"]
            assert reply["code"] == "QUOTA_EXCEEDED"
            assert reply["retry_after"] > 60
            alice.reset()
            assert alice.run("print(1)")["stdout"] == "1\n"


def test_cpu_time_is_charged_once_despite_refused_resets() -> None:
    def booked() -> float:
        lines = ask(server, "GET", "/metrics", X_API_Key=BOB)[2].decode().splitlines()
        (line,) = (line for line in lines if line.startswith('repl_cpu_seconds_total{key="bob"}'))
        return float(line.rpartition(" ")[2])

    with serving({**KEYED, "quota": TenantQuota(cpu_seconds_per_hour=1000)}) as server:
        with peer(server, **as_owner(BOB)) as bob:
            bob.reset()
            bob.run("import time\nwhile time.process_time() < 0.5: pass")
            assert bob.refusal("reset", {"context": 5}) == "VALIDATION_ERROR"
            before = booked()  # each reset has the processes looked at
            assert bob.refusal("reset", {"context": 5}) == "VALIDATION_ERROR"
            assert bob.refusal("reset", {"context": 5}) == "VALIDATION_ERROR"
            assert booked() - before < 0.25 < before


_CHILD = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "while True: pass"])
"""


def test_background_processes_use_their_tenant_s_time_and_end_with_it() -> None:
    quota = TenantQuota(cpu_seconds_per_hour=10)
    with serving({**KEYED, "quota": quota, "grace_s": 1.5}) as server:  # which has it look often
        with peer(server, **as_owner(BOB)) as bob:
            bob.reset()
            bob.run(_CHILD)
            leave_cpu(server, "bob", 1.3)

            assert bob.closed() == 4429
        ended = b'repl_sessions_closed_total{reason="quota"} 1.0'
        eventually(lambda: ended in ask(server, "GET", "/metrics", X_API_Key=ALICE)[2])


def test_frames_and_bodies_have_size_limits(open_to_all) -> None:
    with socket.create_connection(("127.0.0.1", open_to_all.port)) as raw:
        raw.sendall(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        raw.settimeout(PATIENCE)
        assert b" 101 " in raw.recv(1 << 16)
        raw.sendall(frame(b"", announced=1 << 30))
        seen = b""
        while piece := raw.recv(1 << 16):
            seen += piece
    assert (1009).to_bytes(2) in seen

    status, _, told = ask(open_to_all, "POST", "/reset", {"context": "x" * MIB})
    assert (status, told["code"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize("beginning", [b"", b"POST /reset HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_without_a_request_is_closed(beginning) -> None:
    with (
        serving({"body_s": 0.3}, **TOYS) as server,
        socket.create_connection(("127.0.0.1", server.port)) as slow,
    ):
        slow.sendall(beginning)
        slow.settimeout(PATIENCE)

        assert b"408" in slow.recv(1 << 16)


def test_connections_over_the_limit_are_refused_with_an_answer() -> None:
    with serving({"connections": 3, "max_sessions": 2}) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        try:
            with socket.create_connection(("127.0.0.1", server.port)) as late:
                late.settimeout(PATIENCE)
                assert b"CAPACITY_REACHED" in late.recv(1 << 16)
        finally:
            for each in held:
                each.close()
        eventually(lambda: ask(server, "GET", "/health")[0] == 200)


def test_neither_keys_nor_tokens_nor_contents_are_in_logs_or_metrics(keyed, caplog) -> None:
    caplog.set_level(logging.DEBUG, "repl_server")
    with peer(keyed, named=True, **as_owner(ALICE)) as alice:
        token = alice.open()["token"]
        alice.reset(hf_token="hf_secret", llm_model="the model")
        alice.reset(context="the document", expected_answer="the answer")
        alice.run("print('the output')")
        alice.run("raise ValueError('the message')")
        alice.ask("step", {"code": 5, "is_final": "the field"})
    headers = {"X_API_Key": ALICE, "X_Session_Id": token}
    ask(keyed, "POST", "/step?key=the-query", {"action": {"codes": "the field"}}, **headers)
    numbers = ask(keyed, "GET", "/metrics", X_API_Key=ALICE)[2].decode()
    logged = str([record.__dict__ for record in caplog.records])

    assert re.search(r'^repl_steps_total{outcome="ok"} [1-9]', numbers, re.MULTILINE)
    assert re.search(r'^repl_steps_total{outcome="exception"} [1-9]', numbers, re.MULTILINE)
    assert re.search(r'^repl_refusals_total{code="VALIDATION_ERROR"} [1-9]', numbers, re.MULTILINE)
    assert "127.0.0.1" not in numbers
    secrets = (ALICE, token, "the document", "the answer", "hf_secret", "the output", "the message")
    for secret in (*secrets, "the field", "the-query"):
        assert secret not in logged
        assert secret not in numbers


def test_a_refusal_is_found_in_the_log_by_its_id(keyed, caplog) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    ids = [ask(keyed, "GET", "/state", X_API_Key=BOB, X_Session_Id="none")[2]["id"]]
    with peer(keyed, named=True, **as_owner(BOB)) as bob:
        ids.append(bob.ask("state")["data"]["id"])
        bob.open()
        ids.append(bob.ask("step", {"code": "1"})["data"]["id"])
        bob.send("close", {}, id="last")
        bob.closed()

    events = [record for record in caplog.records if getattr(record, "event", "") == "refused"]
    noted = [record.fields.get("id") for record in events]
    assert [each for each in noted if each in ids] == ids


def test_a_key_sees_no_other_tenant_s_name_unless_the_operator_allows_it() -> None:
    with serving({**KEYED, "metrics_key": "bob"}) as server:
        for key in (ALICE, BOB):
            with peer(server, **as_owner(key)) as one:
                one.reset()
                one.run("sum(range(1_000_000))")
        told = {key: ask(server, "GET", "/metrics", X_API_Key=key)[2] for key in (ALICE, BOB)}

    assert b'{key="alice"}' in told[ALICE] and b"bob" not in told[ALICE]
    assert b'{key="alice"}' in told[BOB] and b'{key="bob"}' in told[BOB]


def test_the_metrics_key_must_be_a_known_key() -> None:
    with pytest.raises(ValueError, match="metrics_key: no key has the name 'carol'"):
        create_app(Settings(hashed_keys=(ALICE_LINE,), metrics_key="carol"))
