"""`/mcp` over HTTP and WebSocket, and the `mcp` frame of `/ws`, against a real server."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from websockets.sync.client import connect

from repl_env.env.environment import REPLEnvironment
from repl_env.interfaces import Environment
from repl_env.models import Action, Observation, State
from repl_env.rubrics import Rubric
from tests.server.conftest import Peer, peer, serving
from tests.waiting import PATIENCE, eventually


@contextmanager
def line(server, path):
    """A WebSocket on `path`."""
    url = f"ws://127.0.0.1:{server.port}{path}"
    with connect(url, compression=None, open_timeout=PATIENCE) as socket:
        yield Peer(socket)


def http(method, url, **more):
    """A request from a connection of its own, which waits for as long as it takes."""
    return httpx2.request(method, url, timeout=PATIENCE, **more)


@pytest.fixture(scope="module")
def quiet_server():
    """One server for all tests here, without other sessions."""
    with serving() as server:
        yield server


@pytest.fixture
def post(quiet_server):
    """Posts to `/mcp`; each from a connection of its own."""

    def send(message, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        content = message if isinstance(message, (str, bytes)) else json.dumps(message)
        return http("POST", f"{quiet_server}/mcp", content=content, headers=headers)

    return send


def request(method, id=1, **params):
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def execute(code, id=1, **more):
    return request("tools/call", id, name="execute", arguments={"code": code}, **more)


def initialize():
    client = {"name": "raw", "version": "1"}
    return request("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)


def text(result):
    """The text of a result, as JSON has it or the SDK."""
    blocks = result["content"] if isinstance(result, dict) else result.content
    found = [each if isinstance(each, dict) else each.model_dump() for each in blocks]
    return "\n".join(each["text"] for each in found if each["type"] == "text")


# ── the SDK's client ─────────────────────────────────────────────────────────────────────────────


async def test_the_sdk_s_client_has_a_session_until_it_leaves(quiet_server):
    """The client requests the newest version, and takes one that has sessions."""
    async with Client(f"{quiet_server}/mcp") as client:
        (session,) = quiet_server.manager.sessions
        tools = (await client.list_tools()).tools
        await client.call_tool("execute", {"code": "x = 20"})
        result = await client.call_tool("execute", {"code": "x + 1"})
        ended = await client.call_tool("submit_answer", {"answer": 21})
        name = client.server_info.name

    assert name == "repl-env"
    assert {tool.name for tool in tools} == {"execute", "reset", "submit_answer"}
    assert text(result) == "21"
    assert result.structured_content["result"]["value"] == "21"
    assert ended.structured_content["metadata"]["answer_value"] == 21
    assert session.closing


async def test_files_are_resources_of_the_session_of_the_client(quiet_server):
    async with Client(f"{quiet_server}/mcp") as client, Client(f"{quiet_server}/mcp") as other:
        await client.call_tool("execute", {"code": "open('a b', 'w').write('text')"})
        (resource,) = (await client.list_resources()).resources
        assert (resource.uri, resource.size) == ("workspace:///a%20b", 4)
        assert (await client.read_resource(resource.uri)).contents[0].text == "text"
        assert (await other.list_resources()).resources == []
        with pytest.raises(MCPError, match="no session"):
            await other.read_resource(resource.uri)


async def test_output_streams_to_the_sdk_s_client_and_a_cancelled_call_keeps_the_session(
    quiet_server,
):
    heard, seen = asyncio.Event(), []

    async def on_progress(progress, total, message):
        seen.append(message)
        heard.set()

    async with Client(f"{quiet_server}/mcp") as client:
        code = "kept = 3\nprint('under way', flush=True)\nwhile True: pass"
        endless = asyncio.create_task(
            client.call_tool(
                "execute", {"code": code, "timeout_s": 300}, progress_callback=on_progress
            )
        )
        await heard.wait()
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        after = await client.call_tool("execute", {"code": "kept"})

    assert seen[0].startswith("under way")
    assert text(after) == "3"


async def test_errors_are_reported_to_the_model_or_the_client(quiet_server):
    async with Client(f"{quiet_server}/mcp") as client:
        wrong = await client.call_tool("reset", {"contexts": {"no name": "x"}})
        with pytest.raises(MCPError, match="there is no tool 'rm'"):
            await client.call_tool("rm", {})

    assert wrong.is_error
    assert "'no name' is not a name for a variable" in text(wrong)


# ── raw HTTP ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "code", "id"),
    [
        ("{}", -32600, None),
        ("{", -32700, None),
        (b"\xff\xfe", -32700, None),
        ("null", -32600, None),
        ('[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]', -32600, None),
        ('{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}', -32600, 1),
        ('{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": [1]}', -32602, 1),
        ('{"jsonrpc": "2.0", "id": "a", "method": "no/such"}', -32601, "a"),
        ('{"jsonrpc": "2.0", "id": 1, "method": "server/discover"}', -32601, 1),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}', -32602, 1),
        ("[" * 100_000, -32700, None),
        ('{"jsonrpc": "2.0", "id": 1, "a": ' + "[" * 70 + "]" * 70 + "}", -32600, 1),
        (json.dumps(request("tools/call", name="execute", session_id="?")), -32602, 1),
        (json.dumps(request("tools/call", name="execute", session_id=5)), -32602, 1),
        (json.dumps(request("openenv/session/close")), -32602, 1),
        (json.dumps(request("openenv/session/close", session_id="?")), -32602, 1),
        (json.dumps(request("initialize")), -32602, 1),
    ],
)
def test_json_rpc_errors_have_the_status_200_without_a_session(post, content, code, id):
    answer = post(content)

    assert answer.status_code == 200
    told = answer.json()
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", id, code)
    assert "Traceback" not in answer.text and "/work" not in answer.text


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        ("{", {"Mcp_Session_Id": "x"}, 400, -32700),
        (request("tools/list"), {"Mcp_Session_Id": "x"}, 404, -32602),
        (request("tools/list"), {"MCP_Protocol_Version": "2026-07-28"}, 400, -32022),
        (request("tools/list"), {"MCP_Protocol_Version": "soon"}, 400, -32022),
    ],
)
def test_clients_of_streamable_http_get_its_statuses(post, content, headers, status, code):
    answer = post(content, **headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("headers", [{}, {"Mcp-Session-Id": "x"}, {"Content-Type": "text/plain"}])
def test_a_request_without_a_body_is_400(quiet_server, headers):
    answer = http("POST", f"{quiet_server}/mcp", headers=headers, content=b"")

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)


def test_the_document_says_what_the_server_requires(quiet_server):
    paths = http("GET", f"{quiet_server}/openapi.json").json()["paths"]
    (named,) = paths["/mcp"]["delete"]["parameters"]
    bodies = {
        f"{method} {path}": operation["requestBody"]
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }

    assert (named["name"], named["in"], named["required"]) == ("Mcp-Session-Id", "header", True)
    assert "post /reset" in bodies and '"null"' not in json.dumps(bodies)
    for path in ("/reset", "/step", "/mcp"):
        given = {"Content-Type": "application/json", "Mcp-Session-Id": "x"}
        refused = http("POST", f"{quiet_server}{path}", headers=given, content=b"null")
        assert refused.status_code in (400, 422), path
    assert http("POST", f"{quiet_server}/reset").status_code == 200


def test_requests_that_need_no_session_open_none(post, quiet_server):
    before = quiet_server.manager.admission.open
    listed = post(request("tools/list")).json()["result"]["tools"]
    pinged = post(request("ping")).json()
    notified = post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    assert len(listed) == 3
    assert listed[0]["inputSchema"]["required"] == ["code"]
    assert pinged["result"] == {}
    assert (notified.status_code, notified.content) == (202, b"")
    assert quiet_server.manager.admission.open == before


def test_a_call_without_a_session_has_a_session_for_itself(post, quiet_server):
    first = post(execute("lost = 1\nlost"))
    second = post(execute("lost"))

    assert text(first.json()["result"]) == "1"
    assert second.json()["result"]["isError"]
    assert quiet_server.manager.sessions == []


def test_openenv_s_session_ids_are_in_the_parameters(post, quiet_server):
    token = post(request("openenv/session/create")).json()["result"]["session_id"]
    post(execute("x = 4", session_id=token))
    with line(quiet_server, f"/ws?session_id={token}") as socket:
        beside = socket.run("x + 1")
        socket.send("close")
    after = post(execute("x + 2", session_id=token))
    listed = post(request("tools/list", session_id=token))
    closed = post(request("openenv/session/close", session_id=token))
    again = post(request("openenv/session/close", session_id=token))

    assert beside["value"] == "5"
    assert text(after.json()["result"]) == "6"
    assert len(listed.json()["result"]["tools"]) == 3
    assert closed.json()["result"] == {"session_id": token, "closed": True}
    assert again.json()["error"]["data"]["code"] == "UNKNOWN_SESSION"


def test_a_request_without_an_id_is_answered_as_openenv_does(post):
    told = post({"jsonrpc": "2.0", "method": "tools/list"}).json()

    assert told["id"] is None
    assert len(told["result"]["tools"]) == 3


def test_streamable_http_by_hand(post, quiet_server):
    begun = post(initialize())
    token = begun.headers["Mcp-Session-Id"]
    held = {"Mcp_Session_Id": token, "MCP_Protocol_Version": "2025-06-18"}
    plain = post(execute("y = 2\ny"), **held)
    streamed = post(execute("y"), **held, Accept="application/json, text/event-stream")
    url = f"{quiet_server}/mcp"
    refused = http("GET", url, headers={"Mcp-Session-Id": token})
    nameless = http("DELETE", url)
    ended = http("DELETE", url, headers={"Mcp-Session-Id": token})
    gone = http("DELETE", url, headers={"Mcp-Session-Id": token})

    assert begun.json()["result"]["protocolVersion"] == "2025-06-18"
    assert text(plain.json()["result"]) == "2"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    (line,) = (each for each in streamed.text.splitlines() if each.startswith("data: "))
    assert text(json.loads(line.removeprefix("data: "))["result"]) == "2"
    assert [each.status_code for each in (refused, nameless, ended, gone)] == [405, 400, 204, 404]


def test_a_call_whose_stream_was_left_can_still_be_cancelled(post, quiet_server):
    token = post(initialize()).headers["Mcp-Session-Id"]
    held = {"Mcp-Session-Id": token, "Accept": "text/event-stream"}
    code = "kept = 1\nprint('on', flush=True)\nwhile True: pass"
    call = execute(code, id="left", _meta={"progressToken": 1})
    call["params"]["arguments"]["timeout_s"] = 300
    url = f"{quiet_server}/mcp"
    with httpx2.stream("POST", url, json=call, headers=held, timeout=PATIENCE) as stream:
        first = next(line for line in stream.iter_lines() if line.startswith("data: "))
    note = {"method": "notifications/cancelled", "params": {"requestId": "left"}}
    noted = post({"jsonrpc": "2.0", **note}, Mcp_Session_Id=token)
    after = post(execute("kept", id="after"), Mcp_Session_Id=token)
    http("DELETE", f"{quiet_server}/mcp", headers=held)

    assert json.loads(first.removeprefix("data: "))["method"] == "notifications/progress"
    assert noted.status_code == 202
    assert text(after.json()["result"]) == "1"


def test_the_end_of_a_session_answers_all_waiting_requests(post, quiet_server):
    token = post(initialize()).headers["Mcp-Session-Id"]
    post(execute("1"), Mcp_Session_Id=token)  # what runs then is a step, and no episode's beginning
    endless = execute("while True: pass")
    endless["params"]["arguments"]["timeout_s"] = 300
    more = [execute("1", id=each) for each in range(2, 20)]
    (session,) = quiet_server.manager.sessions
    with ThreadPoolExecutor(20) as threads:
        waiting = [threads.submit(post, endless, Mcp_Session_Id=token)]
        eventually(lambda: session.running)
        waiting += [threads.submit(post, call, Mcp_Session_Id=token) for call in more]
        eventually(lambda: session.queued >= 16)
        http("DELETE", f"{quiet_server}/mcp", headers={"Mcp-Session-Id": token})

        told, *others = [each.result().json() for each in waiting]

    # The text must not suggest `reset`, which is unavailable too.
    assert told["error"]["data"]["code"] == "EPISODE_ABORTED"
    assert all("error" in each for each in others)


@pytest.mark.parametrize("named", [True, False], ids=["of a session", "without one"])
@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
def test_a_call_interrupted_by_a_stopping_server_is_an_error(named, accept):
    """The error does not advise to call `reset`, which the server would refuse as well."""
    with serving({"drain_s": 0.05}) as server, ThreadPoolExecutor(1) as threads:
        url, headers = f"{server}/mcp", {"Accept": accept}
        if named:
            begun = http("POST", url, json=initialize())
            headers["Mcp-Session-Id"] = begun.headers["Mcp-Session-Id"]
            http("POST", url, json=execute("1"), headers=headers)  # what is cut off is a step
        waiting = threads.submit(
            http, "POST", url, json=execute("while True: pass"), headers=headers
        )
        eventually(lambda: any(each.running for each in server.manager.sessions))
        server.stop()
        told = waiting.result().text

    error = json.loads(told[told.index("{") :])["error"]
    assert error["data"]["code"] == "DRAINING"
    assert "try again later" in error["message"]


def test_a_session_belongs_to_its_tenant_alone(post, quiet_server):
    """Owners are addresses here; another one has never heard of the session."""
    token = post(request("openenv/session/create")).json()["result"]["session_id"]
    other = httpx2.HTTPTransport(local_address="127.0.0.2")
    with httpx2.Client(transport=other, timeout=PATIENCE) as stranger:
        asked = stranger.post(f"{quiet_server}/mcp", json=execute("1", session_id=token))
        ended = stranger.delete(f"{quiet_server}/mcp", headers={"Mcp-Session-Id": token})
    mine = post(execute("1", session_id=token))
    post(request("openenv/session/close", session_id=token))

    assert asked.json()["error"]["data"]["code"] == "UNKNOWN_SESSION"
    assert ended.status_code == 404
    assert text(mine.json()["result"]) == "1"


# ── WebSockets ───────────────────────────────────────────────────────────────────────────────────


def asked(socket, message):
    socket.socket.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
    return socket.take()


def test_a_websocket_has_a_session_of_its_own(quiet_server):
    with line(quiet_server, "/mcp") as one, line(quiet_server, "/mcp") as other:
        asked(one, execute("mine = 1"))
        mine = asked(one, execute("mine", id="b"))
        theirs = asked(other, execute("mine"))
        inner = asked(one, request("openenv/session/create"))["result"]["session_id"]
        kept = asked(one, request("openenv/session/close", session_id=inner))

    assert (mine["id"], text(mine["result"])) == ("b", "1")
    assert theirs["result"]["isError"]
    assert kept["error"]["code"] == -32600


@pytest.mark.parametrize(
    ("frame", "code"),
    [("{", -32700), ("[]", -32600), (b"{}", -32700), ("{}", -32600), ("[" * 100_000, -32700)],
)
def test_bad_frames_are_answered_and_the_socket_lives(quiet_server, frame, code):
    with line(quiet_server, "/mcp") as socket:
        told = asked(socket, frame)
        after = asked(socket, request("tools/list", id=2))

    assert (told["id"], told["error"]["code"]) == (None, code)
    assert (after["id"], len(after["result"]["tools"])) == (2, 3)


def test_progress_and_cancellation_over_a_websocket(quiet_server):
    code = "kept = 5\nprint('on', flush=True)\nwhile True: pass"
    with line(quiet_server, "/mcp") as socket:
        told = asked(socket, execute(code, id="endless", _meta={"progressToken": 7}))
        note = {"method": "notifications/cancelled", "params": {"requestId": "endless"}}
        socket.socket.send(json.dumps({"jsonrpc": "2.0", **note}))
        after = asked(socket, execute("kept", id="after"))
        while "id" not in after:  # what was on its way when the call was given up
            after = socket.take()

    assert (told["method"], told["params"]["progressToken"]) == ("notifications/progress", 7)
    assert told["params"]["message"].startswith("on")
    assert (after["id"], text(after["result"])) == ("after", "5")


def test_a_cancellation_over_a_websocket_has_no_answer(quiet_server):
    """A notification has none, and what is no JSON-RPC may end its client."""
    with line(quiet_server, "/mcp") as socket:
        code = "print('on', flush=True)\nwhile True: pass"
        asked(socket, execute(code, id="endless", _meta={"progressToken": 7}))
        note = {"method": "notifications/cancelled", "params": {"requestId": "endless"}}
        socket.socket.send(json.dumps({"jsonrpc": "2.0", **note}))
        told = [asked(socket, execute("1", id="after"))]
        while told[-1].get("id") != "after":
            told.append(socket.take())

    assert {each.get("jsonrpc") for each in told} == {"2.0"}
    assert {each.get("id") for each in told} <= {None, "after"}


def test_the_mcp_frame_acts_on_the_session_of_its_socket(quiet_server):
    with peer(quiet_server) as socket:
        socket.reset(context="a text")
        socket.run("x = 1")
        called = socket.ask("mcp", execute("x += len(context)\nx", _meta={"progressToken": 1}))
        stepped = socket.ask("step", {"code": "x"})["data"]["observation"]
        wrong = socket.ask("mcp", {"jsonrpc": "1.0"})
        noted = socket.ask("mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        listed = socket.ask("mcp", {"jsonrpc": "2.0", "method": "tools/list"})

    assert called["type"] == "mcp"
    assert text(called["data"]["result"]) == "7"
    assert stepped["result"]["value"] == "7"
    assert stepped["iteration"] == 3
    assert wrong["data"]["error"]["code"] == -32600
    assert noted["data"] == {"jsonrpc": "2.0", "id": None, "result": {}}
    assert len(listed["data"]["result"]["tools"]) == 3


def test_a_v1_socket_has_the_mcp_frame_and_can_cancel_it(quiet_server):
    with peer(quiet_server, named=True) as socket:
        socket.open()
        told = socket.ask("mcp", execute("2 + 2"), id="m")

    assert told["id"] == "m"
    assert text(told["data"]["result"]) == "4"


def test_a_scored_task_cannot_be_restarted_by_the_policy(quiet_server):
    reset = request("tools/call", name="reset", arguments={})
    with peer(quiet_server) as socket:
        socket.reset(context="abc", expected_answer="3")
        refused = socket.ask("mcp", reset)["data"]["result"]
        ended = socket.ask("mcp", execute("FINAL(len(context))"))["data"]["result"]
        still = socket.ask("mcp", reset)["data"]["result"]
        socket.reset(context="abc")
        begun = socket.ask("mcp", reset)["data"]["result"]

    assert refused["isError"] and "this task is scored" in text(refused)
    assert ended["structuredContent"]["reward"] == 1.0
    assert still["isError"]
    assert not begun["isError"]


# ── other servers ────────────────────────────────────────────────────────────────────────────────


def test_a_full_server_says_so_in_each_form():
    small = {"max_sessions": 1, "max_waiting": 0}
    with serving(small) as server, line(server, "/mcp") as socket:
        asked(socket, execute("1"))
        plain = http("POST", f"{server}/mcp", json=execute("1"))
        streamable = http(
            "POST",
            f"{server}/mcp",
            json=initialize(),
            headers={"MCP-Protocol-Version": "2025-06-18"},
        )
        with line(server, "/mcp") as other:
            told = other.take()

    for error in (plain.json()["error"], streamable.json()["error"], told["error"]):
        assert error["code"] == -32000
        assert error["data"]["code"] == "CAPACITY_REACHED"
        assert error["data"]["max_sessions"] == 1
    assert (plain.status_code, streamable.status_code) == (200, 503)


class Loud(Rubric):
    """A rubric that fails, and says too much."""

    def forward(self, action, observation):
        raise ValueError("the answer is 42")


def test_error_texts_of_a_rubric_are_not_sent_to_the_model():
    def environment():
        return REPLEnvironment(rubric=Loud())

    with serving(environment=environment) as server, peer(server) as socket:
        told = socket.ask("mcp", execute("1"))["data"]

    assert told["error"]["code"] == -32603
    assert told["error"]["message"] == "the environment failed"
    assert "42" not in json.dumps(told["error"]["data"]["message"])


class Counter(Environment[Action, Observation, State]):
    """An environment that runs no code."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        return Observation()

    def step(self, action, timeout_s=None, **more):
        return Observation()

    @property
    def state(self):
        return State()


def test_an_environment_of_another_kind_has_no_tools():
    with serving(environment=Counter, action=Action, observation=Observation) as server:
        told = http("POST", f"{server}/mcp", json=request("tools/list")).json()

    assert told["error"]["code"] == -32603
    assert told["error"]["message"] == "this environment has no tools"
