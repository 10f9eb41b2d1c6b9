"""Sockets that send anything: each frame has its answer, and no answer is a fault of the server."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from repl_env.refusals import CODES, SUBPROTOCOL
from repl_sandbox import Limits
from repl_server.requests import KINDS
from tests.server.conftest import serving

FAULTS = {"SESSION_ERROR", "FACTORY_ERROR"}
TELLING = ("Traceback", 'File "', "site-packages", "repl_server/")

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["x = 1", "1/0", "print('a')", "FINAL(1)", "\ud800", "open", "reset"])
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = st.sampled_from(
    ["code", "is_final", "final_answer", "context", "contexts", "files", "seed", "token", "uploads",
     "max_iterations", "expected_answer", "answer_schema", "task_prompt", "llm", "hf_token", "id",
     "request", "variables", "jsonrpc", "method", "params", "$bytes"]
)  # fmt: skip
data = st.dictionaries(fields, values, max_size=4) | st.fixed_dictionaries(
    {"code": st.sampled_from(["x = 1", "print(x)", "1/0", "FINAL(2)", "while True: pass"])}
)
requests = st.fixed_dictionaries(
    {"type": st.sampled_from([kind for kind in KINDS if kind != "close"])},
    optional={
        "data": data | values,
        "id": st.sampled_from(["a", "b", "c"]) | values,
        "timeout_s": st.just(0.05) | values,
        "stream": st.booleans() | values,
    },
)
frames = st.one_of(
    requests.map(json.dumps),
    requests.map(json.dumps),
    values.map(json.dumps),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace").decode()),
    st.binary(max_size=40),
    st.integers(1, 2000).map(lambda depth: "[" * depth),
    st.integers(1, 2000).map(lambda depth: '{"type":' * depth),
)


@pytest.fixture(scope="module")
def server():
    """A server on which no cell takes long."""
    limits = Limits(timeout=0.1, grace=0.1)
    with serving({"max_sessions": 64, "grace_s": 0.2, "limits": limits}) as running:
        yield running


@pytest.mark.parametrize("protocols", [None, [SUBPROTOCOL]], ids=["plain", "named"])
def test_each_frame_is_answered_and_nothing_breaks(server, protocols):
    @settings(
        max_examples=100,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(begun=st.booleans(), sent=st.lists(frames, min_size=1, max_size=6))
    def check(begun, sent):
        url = f"ws://127.0.0.1:{server.port}/ws"
        with connect(url, subprotocols=protocols, compression=None) as socket:
            if protocols is not None:
                socket.send('{"type": "open", "id": "first"}')
                assert sound(socket)["type"] == "session"
            if begun:
                socket.send('{"type": "reset", "data": {}' + (', "id": "r"}' if protocols else "}"))
                assert sound(socket)["type"] == "observation"
            for frame in sent:
                socket.send(frame)
                sound(socket)
            # The session lives: it answers what is right.
            socket.send(json.dumps({"type": "state"} | ({} if protocols is None else {"id": "z"})))
            assert sound(socket)["type"] in ("state", "error")

    check()


def sound(socket):
    """The next reply, which is one that may be; output of steps is passed over."""
    while True:
        text = socket.recv(timeout=60)
        reply = json.loads(text)
        if reply["type"] != "output":
            break
    if reply["type"] == "error":
        assert reply["data"]["code"] in CODES
        assert reply["data"]["code"] not in FAULTS, text
        assert not any(word in text for word in TELLING), text
    return reply
