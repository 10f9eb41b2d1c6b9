"""Any message on a socket and any body gets one reply, which names the fault."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from repl_env.client.protocol import CODES
from repl_server.protocol import KINDS, REPLResetArguments
from tests.server.conftest import ask, peer

FUZZ = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
REPLIES = {
    "observation", "state", "mcp", "variables", "draft", "rollback", "branch", "cancelled",
    "session",
}  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
code = st.sampled_from(
    ["1", "x = 1", "print('a')", "1 / 0", "FINAL(x)", "answer", "(", "\0", "\ud800"]
)
actions = st.fixed_dictionaries(
    {"code": code | values}, optional={"is_final": values, "final_answer": values, "more": values}
)
resets = st.dictionaries(
    st.sampled_from(sorted(REPLResetArguments.model_fields)), values, max_size=4
)
frames = st.fixed_dictionaries(
    {"type": st.sampled_from([*KINDS, "", "Step"]) | values},
    optional={
        "data": actions | resets | values,
        "id": st.text(st.characters(codec="utf-8"), min_size=1, max_size=64) | st.text() | values,
        "timeout_s": st.floats(min_value=0.01, max_value=1) | values,
        "stream": st.booleans() | values,
        "more": values,
    },
)
texts = frames.map(json.dumps) | st.text(max_size=50) | st.binary(max_size=50)


def told(one):
    """The next reply, output aside; it must be one that there is, without a traceback."""
    while True:
        frame = one.take()
        if frame["type"] != "output":
            break
    assert frame["type"] in REPLIES or frame["data"]["code"] in CODES
    assert frame["type"] in REPLIES or "Traceback" not in json.dumps(frame)
    return frame


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "named"])
def sockets(server, request):
    """Opens a socket, and again when it was closed; ends them all."""
    held = []

    def socket():
        if not held:
            held.append(peer(server, named=request.param))
            held.append(held[0].__enter__())
            if request.param:
                held[1].open()  # type: ignore[attr-defined]
        return held[1]

    yield socket, held
    if held:
        held[0].__exit__(None, None, None)


@FUZZ
@given(text=texts)
def test_each_frame_has_one_reply(sockets, text):
    socket, held = sockets
    one = socket()
    closed = None
    try:
        one.socket.send(text)
        told(one)
        marker = {"id": "marker"} if one.named else {}
        one.send("marker", **marker)
        reply = told(one)
        assert reply["data"]["code"] == "UNKNOWN_TYPE" and reply.get("id") == marker.get("id")
    except ConnectionClosed as error:
        closed = error.rcvd
        held.pop(0).__exit__(None, None, None)
        held.clear()
    if not held:
        assert closed is not None and closed.code == 1000
        assert json.loads(text)["type"] == "close"


@FUZZ
@given(
    route=st.sampled_from(
        ["POST /reset", "POST /step", "GET /state", "DELETE /session", "POST /mcp", "GET /ready"]
    ),
    body=(resets | st.fixed_dictionaries({"action": actions | values}) | values).map(json.dumps)
    | st.text(max_size=50),
    session=st.none() | st.text(st.characters(codec="latin-1"), max_size=30) | st.just("new"),
)
def test_each_request_has_an_answer(server, route, body, session):
    method, path = route.split()
    more = {}
    if session is not None and session.isprintable() and session.strip() == session:
        more["X_Session_Id"] = session
    text = body.encode("utf-8", "surrogatepass")
    status, headers, answer = ask(server, method, path, text, **more)

    assert status < 500
    assert "Traceback" not in json.dumps(str(answer))
    if made := headers.get("X-Session-Id"):
        assert ask(server, "DELETE", "/session", X_Session_Id=made)[0] == 204
