"""Malformed requests are no errors of the server: no traceback, nothing above a warning."""

from __future__ import annotations

import logging
import socket
import struct

from tests.server.conftest import ask, serving
from tests.server.raw_connections import frame
from tests.waiting import PATIENCE

NAMED = "Sec-WebSocket-Protocol: repl-env.v1\r\n"


def upgrade(path: str = "/ws", more: str = "") -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"{more}\r\n"
    ).encode("latin-1")


def request(line: str, body: bytes = b"", more: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n{more}\r\n"
    return head.encode("latin-1") + body


_FRAMES = [
    *(frame(b"abc", 2), frame(b"\xff\xfe"), frame(b"\xe2\x82"), frame(b'"\xed\xa0\x80"')),
    *(frame(b'{"type":"' + b"\xff" * 70_000), frame(b"\xe2\x82", fin=False) + frame(b"x", 0)),
    *(frame(b"x", 3), frame(b"x", 0), frame(b"x" * 200, 9), frame(b"x", 9, fin=False)),
    *(frame(b"x", 8), frame(struct.pack("!H", 1005), 8), frame(b"\x03\xe8\xff", 8)),
    *(frame(b"", announced=1 << 40), frame(b"x", announced=100), b"\x81", b"\xff" * 300),
    *(frame(b"{"), frame(b"[" * 60_000), frame(b"NaN"), frame(b""), frame(b'{"\\ud800":1}')),
    *(frame(b'{"type":"\\ud800","id":"\\ud800"}'), frame(b'{"type":"state","id":"a"}')),
    frame(b'{"type":"resume","id":"a","data":{"token":"\\ud800"}}'),
    frame(b'{"type":"reset","id":"a","data":{"seed":' + b"9" * 5000 + b"}}"),
]
_QUERIES = ["UNKNOWN", "%ff%fe", "%00", "a&session_id=b", "x" * 8000]
_BODIES = [b'{"context":"\xff"}', b"\xff\xfe{", b"[" * 50_000, b'{"hf_token":"\\ud800"}', b"{"]
INPUTS = [
    *(upgrade(more=more) + each for more in ("", NAMED) for each in _FRAMES),
    *(upgrade(f"/ws?session_id={each}", more) for more in ("", NAMED) for each in _QUERIES),
    *(upgrade("/mcp") + each for each in _FRAMES),
    *(upgrade(more=f"Sec-WebSocket-Protocol: {each}\r\n") for each in ("\xff", ",,", "a b", "")),
    *(request(f"POST /{where}", each) for where in ("reset", "step", "mcp") for each in _BODIES),
    *(request("POST /reset", b"x", f"Content-Type: {each}\r\n") for each in ("\xff", "a/b", ";")),
    *(
        request(f"{each}", b"{}", length=1000)
        for each in ("POST /reset", f"PUT /contexts/{'0' * 64}")
    ),
    *(
        b"\xff\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"G",
    ),
    request("GET /\xff", more="X-Session-Id: \xff\r\n"),
    request("GET /state", more="Host: two\r\n"),
]


def test_no_malformed_request_is_logged_as_a_server_error(caplog):
    caplog.set_level(logging.INFO)
    answered = 0
    with serving() as server:
        for each in INPUTS:
            with socket.create_connection(("127.0.0.1", server.port)) as stranger:
                stranger.settimeout(PATIENCE)
                try:
                    stranger.sendall(each)
                    stranger.shutdown(socket.SHUT_WR)
                    while data := stranger.recv(1 << 16):
                        answered += data.startswith(b"HTTP/1.1 4")
                except OSError:
                    pass  # it was refused before all of it was read
        assert ask(server, "GET", "/health")[0] == 200

    assert answered > 2
    faults = [each for each in caplog.records if each.exc_info or each.levelno > logging.WARNING]
    assert [caplog.handler.format(each) for each in faults] == []
