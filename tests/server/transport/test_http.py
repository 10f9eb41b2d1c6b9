"""The HTTP routes: OpenEnv's, each in an environment of its own, and those of a session."""

import json
import socket
import threading

import pytest

from tests.server.conftest import ask, peer
from tests.server.toy_environments import Adder
from tests.waiting import PATIENCE, eventually

SESSION = "X-Session-Id"


def make(server, **reset):
    """A new session; the headers that name it."""
    status, headers, _ = ask(server, "POST", "/reset", reset, X_Session_Id="new")
    assert status == 200
    return {"X_Session_Id": headers[SESSION]}


def test_a_reset_without_a_session_leaves_nothing(server):
    before = set(server.manager.sessions)  # other tests leave some, which end meanwhile
    status, headers, body = ask(server, "POST", "/reset", {"context": "abc", "task_prompt": "?"})

    assert status == 200 and headers[SESSION] is None
    assert body["observation"]["context_length"] == 3
    assert body["reward"] == 0.0 and body["done"] is False
    assert set(server.manager.sessions) <= before


def test_a_reset_needs_no_body(server):
    assert ask(server, "POST", "/reset")[0] == 200


def test_a_step_without_a_session_has_a_new_environment(server, adders):
    told = ask(server, "POST", "/step", {"action": {"code": "1"}})[2]
    assert told["code"] == "NOT_RESET"
    assert "`X-Session-Id: new`" in told["message"]  # a reset alone would be of no use
    assert "X-Session-Id" in ask(server, "GET", "/state")[2]["message"]
    status, _, body = ask(adders, "POST", "/step", {"action": {"number": 1}})
    assert (status, body["code"]) == (409, "EXECUTION_ERROR")
    assert ask(server, "GET", "/state")[::2][0] == 409


def test_a_session_by_http(server):
    session = make(server, context="abc", expected_answer="3")
    step = {"action": {"code": "x = len(context); print(x)"}, "timeout_s": 5}
    status, _, body = ask(server, "POST", "/step", step, **session)
    assert status == 200 and body["observation"]["result"]["stdout"] == "3\n"
    assert body["metadata"] == body["observation"]["metadata"]
    assert ask(server, "GET", "/state", **session)[2]["step_count"] == 1
    last = ask(server, "POST", "/step", {"action": {"code": "FINAL(x)"}}, **session)[2]
    assert last["done"] is True and last["reward"] == 1.0
    status, _, body = ask(server, "POST", "/step", {"action": {"code": "1"}}, **session)
    assert (status, body["code"], body["result"]["reward"]) == (409, "EPISODE_DONE", 1.0)
    assert ask(server, "POST", "/reset", {}, **session)[0] == 200
    assert ask(server, "GET", "/state", **session)[2]["step_count"] == 0
    assert ask(server, "DELETE", "/session", **session)[0] == 204
    assert ask(server, "GET", "/state", **session)[0] == 404
    assert ask(server, "DELETE", "/session", **session)[0] == 404


def test_a_step_has_its_own_limit(server):
    session = make(server)
    step = {"action": {"code": "while True: pass"}, "timeout_s": 0.1}
    body = ask(server, "POST", "/step", step, **session)[2]

    assert body["observation"]["metadata"]["error_kind"] == "timeout"
    assert ask(server, "DELETE", "/session", **session)[0] == 204


def test_a_session_by_http_can_be_resumed_by_a_socket(adders):
    session = make(adders, start=4)
    with peer(adders, named=True) as one:
        assert one.resume(session["X_Session_Id"])["resumed"] is True
        assert one.ask("state")["data"]["total"] == 4


def test_a_session_that_is_deleted_closes_its_socket(adders):
    with peer(adders, named=True) as one, peer(adders, named=True) as other:
        token = one.open()["token"]
        assert ask(adders, "DELETE", "/session", X_Session_Id=token)[0] == 204
        assert one.closed() == 4404
        other.open()
        other.reset()


def test_a_request_id_is_accepted_once(adders):
    session = make(adders, start=1)
    step = {"action": {"number": 2}, "request_id": "r"}
    totals = [ask(adders, "POST", "/step", step, **session)[2] for _ in range(2)]

    assert [each["observation"]["total"] for each in totals] == [3, 3]


def test_a_repeated_request_and_its_original_are_both_answered(adders):
    # A proxy, or a client whose connection broke, sends it once more while it runs.
    session = make(adders, start=1)
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    found = []

    def step():
        body = {"action": {"number": 2, "note": "wait"}, "request_id": "r"}
        found.append(ask(adders, "POST", "/step", body, **session)[2]["observation"]["total"])

    threads = [threading.Thread(target=step) for _ in range(2)]
    threads[0].start()
    assert Adder.waiting.acquire(timeout=60)
    (running,) = [each for each in adders.manager.sessions if each.busy]
    asked = running.used_at
    threads[1].start()
    eventually(lambda: running.used_at > asked)
    Adder.gate.set()
    for thread in threads:
        thread.join(60)
    assert found == [3, 3]


def test_a_session_that_ends_during_a_step_answers_all_waiting_requests(server):
    session = make(server)
    found = []

    def step():
        body = {"action": {"code": "import time; time.sleep(60)"}, "request_id": "r"}
        found.append(ask(server, "POST", "/step", body, **session)[0])

    threads = [threading.Thread(target=step) for _ in range(2)]
    threads[0].start()
    eventually(lambda: [each for each in server.manager.sessions if each.running == "r"])
    (running,) = [each for each in server.manager.sessions if each.running == "r"]
    asked = running.used_at
    threads[1].start()
    eventually(lambda: running.used_at > asked)
    assert ask(server, "DELETE", "/session", **session)[0] == 204
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and set(found) <= {404, 409}


def test_concurrent_repeats_of_a_finished_request_are_all_answered(adders):
    session = make(adders, start=1)
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    found = []

    def step(number, note="", **more):
        body = {"action": {"number": number, "note": note}, **more}
        found.append(ask(adders, "POST", "/step", body, **session)[2]["observation"]["total"])

    step(2, request_id="r")
    threads = [threading.Thread(target=step, args=(4, "wait"))]  # it has no id, and is not kept
    threads += [
        threading.Thread(target=step, args=(2,), kwargs={"request_id": "r"}) for _ in range(2)
    ]
    threads[0].start()
    assert Adder.waiting.acquire(timeout=60)
    (running,) = [each for each in adders.manager.sessions if each.busy]
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: running.queued == 2)
    Adder.gate.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [3, 3, 3, 7]


def test_requests_of_one_session_are_taken_one_after_another(adders):
    session = make(adders, start=0)
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    totals = []

    def step(number, note):
        body = {"action": {"number": number, "note": note}}
        totals.append(ask(adders, "POST", "/step", body, **session)[2]["observation"]["total"])

    first = threading.Thread(target=step, args=(1, "wait"))
    first.start()
    assert Adder.waiting.acquire(timeout=60)
    second = threading.Thread(target=step, args=(2, ""))
    second.start()
    (session_,) = [each for each in adders.manager.sessions if each.busy]
    eventually(lambda: session_.queued == 1)
    Adder.gate.set()
    for thread in (first, second):
        thread.join(60)
    assert sorted(totals) == [1, 3]


def test_a_session_that_ends_answers_waiting_requests(adders):
    session = make(adders)
    Adder.gate, Adder.waiting = threading.Event(), threading.Semaphore(0)
    found = []

    def step():
        body = {"action": {"number": 1, "note": "wait"}}
        found.append(ask(adders, "POST", "/step", body, **session))

    thread = threading.Thread(target=step)
    thread.start()
    assert Adder.waiting.acquire(timeout=60)
    ending = threading.Thread(target=ask, args=(adders, "DELETE", "/session"), kwargs=session)
    ending.start()
    thread.join(60)
    Adder.gate.set()
    ending.join(60)
    assert found[0][0] == 404 and found[0][2]["code"] == "UNKNOWN_SESSION"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "INVALID_JSON"),
        (b"[1]", 400, "INVALID_JSON"),
        (b"\xff\xfe", 400, "INVALID_JSON"),
        (b'{"action": {"number": NaN}}', 400, "INVALID_JSON"),
        (b'{"action": ' + b"[" * 90_000, 400, "INVALID_JSON"),
        (b'{"action": {"note": "\\ud800"}}', 400, "INVALID_JSON"),
        ({}, 422, "VALIDATION_ERROR"),
        ({"action": 1}, 422, "VALIDATION_ERROR"),
        ({"action": {"number": "one"}}, 422, "VALIDATION_ERROR"),
        ({"action": {"number": 1, "note": "bad"}}, 422, "VALIDATION_ERROR"),
        ({"action": {"number": 1, "more": 1}}, 422, "VALIDATION_ERROR"),
        ({"action": {"number": 1}, "timeout_s": -1}, 422, "VALIDATION_ERROR"),
        ({"action": {"number": 1}, "request_id": ""}, 422, "VALIDATION_ERROR"),
    ],
)
def test_bad_steps(adders, body, status, code):
    found, _, told = ask(adders, "POST", "/step", body)

    assert (found, told["code"]) == (status, code)
    assert len(told["id"]) == 32 and told["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"seed": -1}, "VALIDATION_ERROR"),
        ({"context": 7}, "VALIDATION_ERROR"),
        ({"contexts": {"a b": "x"}}, "VALIDATION_ERROR"),
        ({"llm": {"model": "m", "base_url": "http://169.254.169.254/"}}, "FORBIDDEN"),
    ],
)
def test_bad_resets(server, body, code):
    before = set(server.manager.sessions)
    status, headers, told = ask(server, "POST", "/reset", body, X_Session_Id="new")

    assert (status, told["code"]) == (422 if code == "VALIDATION_ERROR" else 403, code)
    assert headers[SESSION] is None
    eventually(lambda: not set(server.manager.sessions) - before)


@pytest.mark.parametrize("token", ["unknown", "%2e%2e", "x" * 199])
def test_unknown_sessions(adders, token):
    for method, path, body in [
        ("POST", "/reset", {}),
        ("POST", "/step", {"action": {"number": 1}}),
        ("GET", "/state", None),
        ("DELETE", "/session", None),
    ]:
        status, _, told = ask(adders, method, path, body, X_Session_Id=token)
        assert (status, told["code"]) == (404, "UNKNOWN_SESSION")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("application/openenv+json", 200),
        ("application/x-www-form-urlencoded", 422),  # what curl says of its own accord
        ("text/plain", 422),
        ("json", 422),
    ],
)
def test_a_body_with_another_content_type_is_refused(adders, kind, status):
    found, _, told = ask(adders, "POST", "/reset", {"start": 1}, Content_Type=kind)

    assert found == status
    if status != 200:
        assert told["errors"][0]["loc"] == ["header", "Content-Type"]
        assert "application/json" in told["message"]


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 422), ("br", 422), ("Identity", 200), ("", 200)]
)
def test_a_compressed_body_is_refused(adders, coding, status):
    """The refusal names the compression, not a fault of JSON or of a hash."""
    found, _, told = ask(adders, "POST", "/reset", {"start": 1}, Content_Encoding=coding)

    assert found == status
    if status != 200:
        assert told["errors"][0]["loc"] == ["header", "Content-Encoding"]
        packed = {"Content_Encoding": coding, "Content_Type": "text/plain"}
        path = f"/contexts/{'0' * 64}"
        assert ask(adders, "PUT", path, b"a", **packed)[2]["errors"] == told["errors"]


def test_a_compressed_transfer_is_refused(adders):
    with socket.create_connection(("127.0.0.1", adders.port), PATIENCE) as client:
        coded = "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        client.sendall(f"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\n{coded}".encode())
        answer = client.makefile("rb").read()

    assert answer.split()[1] == b"422" and b"Transfer-Encoding" in answer


def test_the_information_about_the_server(server):
    for path in ("/health", "/accepting"):
        assert ask(server, "GET", path)[::2] == (200, {"status": "healthy"})
    ready = ask(server, "GET", "/ready")[2]
    assert ready["ready"] is True and ready["free"] + ready["sessions"] == 64
    told = ask(server, "GET", "/metadata")[2]
    assert told["name"] == "repl_env" and told["description"] and told["version"]
    schema = ask(server, "GET", "/schema")[2]
    assert schema["action"]["required"] == ["code"]
    assert "result" in schema["observation"]["properties"]
    assert "episode_id" in schema["state"]["properties"]
    document = ask(server, "GET", "/openapi.json")[2]
    assert document["info"]["version"]
    assert {"/reset", "/step", "/state", "/session", "/health"} <= document["paths"].keys()
    assert "hf_token" in json.dumps(document["components"]["schemas"]["REPLResetArguments"])
