"""The protocol over two descriptors, in this process."""

from __future__ import annotations

import json
import os

import anyio
import pytest

from repl_env.integrations.mcp import ToolCalls, server
from repl_env.integrations.mcp_stdio import serve

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
LISTING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@pytest.fixture
def pipes():
    """The streams of requests and answers, and the client's ends of both."""
    (source, asking), (answers, sink) = os.pipe(), os.pipe()
    for end in (source, sink):
        os.set_blocking(end, False)
    with open(asking, "wb", buffering=0) as requests, open(answers, "rb") as replies:
        yield source, sink, requests, replies
    os.close(source)
    os.close(sink)


def serving(source, sink, stop):
    return serve(server("what it is", ToolCalls(None)), source, sink, stop)


def line(request):
    return json.dumps(request).encode() + b"\n"


async def test_a_client_that_reads_nothing_cannot_delay_the_exit(pipes):
    source, sink, requests, _ = pipes
    requests.write(line(HELLO) + line(LISTING) * 50)
    requests.close()

    with anyio.fail_after(60):
        await serving(source, sink, anyio.Event())


async def test_a_disconnected_client_ends_the_server(pipes):
    source, sink, requests, replies = pipes
    replies.close()
    requests.write(line(HELLO))

    with anyio.fail_after(60):
        await serving(source, sink, anyio.Event())


async def test_the_server_can_be_stopped_before_the_first_message(pipes):
    source, sink, _, _ = pipes
    stop = anyio.Event()
    stop.set()

    with anyio.fail_after(60):
        await serving(source, sink, stop)


async def test_requests_may_come_from_a_file(pipes, tmp_path):
    """Requests from a file are answered, although the file ends at once."""
    _, sink, _, replies = pipes
    (tmp_path / "requests").write_bytes(
        b"\xef\xbb\xbf" + line(HELLO) + b"\n  \n" + b"nonsense\n" + line(LISTING)
    )
    with (tmp_path / "requests").open("rb") as file, anyio.fail_after(60):
        await serving(file.fileno(), sink, anyio.Event())

    told = {answer["id"]: answer for answer in (json.loads(replies.readline()) for _ in range(3))}
    assert told[0]["result"]["serverInfo"]["name"] == "repl-env"
    assert len(told[1]["result"]["tools"]) == 3
    assert told[None]["error"]["code"] == -32700
