"""Connections that stall, flood or hold memory are ended, with a reason, and others go on."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack, suppress

import pytest
from websockets.asyncio.client import connect

from repl_server import connections, websocket_limits
from repl_server.settings import Settings
from repl_server.tenants import TenantQuota
from tests.server.raw_connections import (
    BINARY,
    CLOSE,
    CONTINUED,
    PING,
    PONG,
    TEXT,
    ask,
    frame,
    request,
    serve,
    skip,
    turns,
    wire,
)
from tests.server.server_internals import leave_readers_unwatched
from tests.waiting import until

MIB = 1 << 20
PUBLIC = {"host": "0.0.0.0", "no_auth": True}


HEADERS = 'repl_connections_refused_total{reason="headers"}'


@pytest.fixture(autouse=True)
def lingering(monkeypatch) -> None:
    """Give a refused client longer to finish sending than this process may stall."""
    monkeypatch.setattr(websocket_limits, "LINGER_S", 60.0)


async def hello(scope, receive, send) -> None:
    """Answers every request, without looking at it."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]}
    )
    await send({"type": "http.response.body", "body": b"hello"})


async def echo(scope, receive, send) -> None:
    """A WebSocket that repeats."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message.get("text") or "binary"})


async def test_a_connection_over_the_total_limit_is_refused_with_an_answer() -> None:
    async with serve(hello, Settings(connections=2)) as server:
        async with wire(server.port) as first, wire(server.port), wire(server.port) as third:
            refused = await third.reply()
            assert (refused.status, refused.data["code"]) == (503, "CAPACITY_REACHED")
            assert refused.headers["retry-after"] == "1"
            assert await third.ended() == b""

            first.writer.close()
            await until(lambda: server.connections.open == 1)
            assert (await ask(server.port, "GET", "/")).body == b"hello"
        assert server.counted('repl_connections_refused_total{reason="total"}') == 1


async def test_an_address_has_no_more_connections_than_its_quota() -> None:
    settings = Settings(**PUBLIC, quota=TenantQuota(connections=1))
    async with serve(hello, settings) as server, wire(server.port), wire(server.port) as second:
        assert (await second.reply()).data["code"] == "QUOTA_EXCEEDED"


async def test_the_connections_of_a_proxy_are_not_one_client_s() -> None:
    settings = Settings(**PUBLIC, quota=TenantQuota(connections=1), trusted_proxies=("127.0.0.1",))
    async with serve(hello, settings) as server, wire(server.port):
        assert (await ask(server.port, "GET", "/")).status == 200


async def test_connections_without_a_request_have_a_lower_limit(monkeypatch) -> None:
    monkeypatch.setattr(connections, "HALF_OPEN", 2)
    async with serve(hello, Settings(**PUBLIC)) as server:
        async with wire(server.port) as first, wire(server.port), wire(server.port) as third:
            assert (await third.reply()).status == 429
            await first.send(request("GET", "/"))
            await first.reply()
            # It has sent a request, and so makes room for a connection that has not.
            assert (await ask(server.port, "GET", "/")).status == 200


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_connection_without_a_request_is_closed(beginning) -> None:
    async with serve(hello, Settings()) as server, wire(server.port) as slow:
        await slow.send(beginning)
        await until(lambda: server.connections.open == 1)
        answered = asyncio.create_task(slow.reply())
        await skip(31)
        refused = await answered

        assert (refused.status, refused.data["code"]) == (408, "TOO_SLOW")
        assert await slow.ended() == b""


@pytest.mark.parametrize("drop", [b"x: y\r\n", b"\r\n"])
async def test_trickled_headers_end_the_connection(drop) -> None:
    """Blank lines before a request, too, which a parser skips."""
    async with serve(hello, Settings()) as server, wire(server.port) as slow:
        await slow.send(request("GET", "/"))
        assert (await slow.reply()).status == 200
        await slow.send(b"GET / HTTP/1.1\r\n" if drop != b"\r\n" else b"")
        ended = asyncio.create_task(slow.ended())
        for _ in range(40):
            if server.counted('repl_connections_refused_total{reason="slow_headers"}'):
                break
            await slow.send(drop)
            await skip(1)

        assert b"TOO_SLOW" in await ended


@pytest.mark.parametrize("behind", [False, True])
async def test_headers_without_end_are_cut_off(behind) -> None:
    """Behind a running request, too, where no error can be sent."""
    stuck = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await stuck.wait()

    async with serve(app, Settings()) as server, wire(server.port) as endless:
        ended = asyncio.create_task(endless.ended())
        await endless.send(request("POST", "/") if behind else b"")
        await endless.send(b"GET / HTTP/1.1\r\n")
        sent = 0
        # The refused client is read for a limited time: later it may find the connection closed,
        # without an answer.
        while not server.counted(HEADERS) and sent < 4 * MIB:
            await endless.send(b"x-header: " + b"y" * 1000 + b"\r\n")
            await turns()
            sent += 1000

        assert (b"TOO_LARGE" in await ended) is not behind
        assert server.counted(HEADERS) == 1
        stuck.set()


async def test_a_request_with_too_many_fields_is_refused() -> None:
    async with serve(hello, Settings()) as server:
        for count, status in [(250, 200), (300, 413)]:
            async with wire(server.port) as one:
                await one.send(REQUESTS["small"][:-2] + b"a: b\r\n" * count + b"\r\n")
                assert (await one.reply()).status == status
        assert server.counted(HEADERS) == 1


@pytest.mark.parametrize("line", [b"x: " + b"y" * 60 + b"\r\n", b"y" * 64])
async def test_data_after_an_endless_body_is_cut_off(line) -> None:
    """Its access log lines, or one."""

    async def app(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass

    async with serve(app, Settings()) as server, wire(server.port) as endless:
        await endless.send(request("POST", "/", transfer_encoding="chunked") + b"0\r\nx: ")
        ended = asyncio.create_task(endless.ended())
        sent = 0
        while not server.counted(HEADERS) and sent < 4 * MIB:
            await endless.send(line * 100)
            await turns()
            sent += 6400

        await ended
        assert server.counted(HEADERS) == 1


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({f"x-{each}": "1" for each in range(200)}, b"", 431),
        ({"x-long": "y" * 9000}, b"", 431),
        ({"content-length": "5"}, b"hello", 400),
        ({"transfer-encoding": "chunked"}, b"0\r\n\r\n", 400),
    ],
)
async def test_an_invalid_handshake_is_answered_and_closed(headers, body, status) -> None:
    async with serve(echo, Settings()) as server, wire(server.port) as client:
        lines = {"connection": "Upgrade", "upgrade": "websocket", **headers}
        lines |= {"sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
        await client.send(request("GET", "/ws", **lines) + body)

        async with asyncio.timeout(60):
            assert (await client.reply()).status == status
        await until(lambda: not server.connections.open)


async def test_a_socket_cannot_begin_during_an_answer() -> None:
    stuck = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await stuck.wait()

    async with serve(app, Settings()) as server, wire(server.port) as client:
        await client.send(request("GET", "/"))
        upgrade = {"connection": "Upgrade", "upgrade": "websocket"}
        await client.send(request("GET", "/ws", **upgrade))

        async with asyncio.timeout(60):
            assert await client.ended() == b""
        stuck.set()


@pytest.mark.parametrize("noticed", ["here", "by the kernel"])
async def test_a_client_that_reads_nothing_is_disconnected(noticed, monkeypatch) -> None:
    if noticed == "here":
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    else:
        leave_readers_unwatched(monkeypatch)
    ended = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(MIB)})
        finally:
            ended.set()

    async with serve(app, Settings(send_s=0.1)) as server, wire(server.port) as deaf:
        assert (await deaf.open_socket()).status == 101
        await asyncio.wait_for(ended.wait(), 60)
        await until(lambda: not server.connections.open)


async def test_unread_http_answers_close_the_connection() -> None:
    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(32 * MIB)})

    async with serve(app, Settings(send_s=0.1)) as server, wire(server.port) as deaf:
        await deaf.send(request("GET", "/"))
        await deaf.reader.readuntil(b"\r\n\r\n")
        await until(lambda: not server.connections.open)


async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    async def app(scope, receive, send) -> None:
        headers = [(b"content-length", b"%d" % (24 * MIB))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(24 * MIB)})

    async with serve(app, Settings()) as server, wire(server.port) as slow:
        await slow.send(request("GET", "/"))
        await slow.reader.readuntil(b"\r\n\r\n")
        for _ in range(24):
            await slow.reader.readexactly(MIB)
            await skip(2)  # of the 20 in which it must take 1.25 MiB


@pytest.mark.parametrize("opcode", [PING, PONG])
async def test_a_flood_of_pings_ends_the_connection(opcode) -> None:
    async with serve(echo, Settings()) as server, wire(server.port) as flood:
        await flood.open_socket()
        await flood.send(frame(bytes(125), opcode) * 20 + frame(b"one"))
        while (await flood.frame())[0] != TEXT:
            pass
        await flood.send(frame(bytes(125), opcode) * 1000)

        assert await flood.close_code() == 1008
        assert server.counted('repl_connections_refused_total{reason="pings"}') == 1


@pytest.mark.parametrize("small", [frame(b"x"), frame(b"", fin=False) + frame(b"", CONTINUED)])
async def test_many_small_frames_are_read_fairly(small) -> None:
    many, seen = 5000, 0

    async def app(scope, receive, send) -> None:
        nonlocal seen
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            seen += scope["path"] == "/flood"
            await send({"type": "websocket.send", "text": message["text"]})

    async with serve(app, Settings()) as server:
        async with wire(server.port) as flood, wire(server.port) as other:
            await flood.open_socket("/flood")
            await other.open_socket("/other")
            await flood.send(small * many)
            await other.send(frame(b"quick"))

            assert await other.frame() == (TEXT, b"quick")
            assert seen < many
            for _ in range(many):
                await flood.frame()
            await flood.send(frame(b"last"))
            assert await flood.frame() == (TEXT, b"last")


REQUESTS = {
    "small": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "with a body": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nabcde",
    "in chunks": (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
async def test_pipelined_requests_wait_unparsed_and_are_answered_in_order(asked) -> None:
    many, waiting, bodies = 2000, 0, 0

    async def app(scope, receive, send) -> None:
        nonlocal waiting, bodies
        waiting = max(waiting, *(len(each.pipeline) for each in server.state.connections))
        while True:
            message = await receive()
            bodies += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        await hello(scope, receive, send)

    async with serve(app, Settings()) as server:
        async with wire(server.port) as flood:
            flood.writer.write(asked * many)
            for _ in range(many):
                assert (await flood.reply()).body == b"hello"
            await flood.send(asked)
            assert (await flood.reply()).body == b"hello"

    assert 0 < waiting <= 64
    assert (
        bodies
        == (many + 1)
        * {"small": 0, "with a body": 5, "in chunks": 2}[
            next(name for name, each in REQUESTS.items() if each == asked)
        ]
    )


async def test_others_are_answered_beside_pipelined_requests() -> None:
    count = 0

    async def app(scope, receive, send) -> None:
        nonlocal count
        count += scope["path"] == "/"
        await hello(scope, receive, send)

    async with serve(app, Settings()) as server, AsyncExitStack() as floods:
        for _ in range(20):
            flood = await floods.enter_async_context(wire(server.port))
            flood.writer.write(REQUESTS["small"] * 2000)
        async with wire(server.port) as other:
            await until(lambda: count)
            before = count
            await other.send(request("GET", "/other"))
            assert (await other.reply()).body == b"hello"
            assert count - before < 5_000  # of 40,000


CHUNKED = b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_others_are_answered_beside_small_chunks() -> None:
    received = 0

    async def app(scope, receive, send) -> None:
        nonlocal received
        size = await _size(receive)
        received += size
        await hello(scope, receive, send)

    count, chunks = 20, 500
    body = b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
    async with serve(app, Settings()) as server, AsyncExitStack() as floods:
        for _ in range(count):
            flood = await floods.enter_async_context(wire(server.port))
            flood.writer.write(CHUNKED + body)
        async with wire(server.port) as other:
            await other.send(request("GET", "/other"))
            assert (await other.reply()).body == b"hello"
            # Half a kilobyte of one connection is parsed in each turn of the loop.
            assert received < count * chunks
        await until(lambda: received == count * chunks)


@pytest.mark.parametrize(
    ("size", "count", "is_cut"), [(1, 500, False), (1, 3_000, True), (100, 3_000, False)]
)
async def test_many_small_chunks_end_the_connection(size, count, is_cut) -> None:
    sizes = []

    async def app(scope, receive, send) -> None:
        sizes.append(await _size(receive))
        await hello(scope, receive, send)

    async with serve(app, Settings()) as server, wire(server.port) as chunked:
        chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
        with suppress(ConnectionError):
            await chunked.send(CHUNKED + chunk * count + b"0\r\n\r\n")
        if is_cut:
            await until(
                lambda: server.counted('repl_connections_refused_total{reason="small_chunks"}')
            )
        else:
            assert (await chunked.reply()).body == b"hello"
            assert sizes == [size * count]


async def _size(receive) -> int:
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return size


async def test_a_large_body_behind_a_request_is_whole() -> None:
    size = 0

    async def app(scope, receive, send) -> None:
        nonlocal size
        while (message := await receive()).get("more_body"):
            size += len(message["body"])
        size += len(message.get("body", b""))
        await hello(scope, receive, send)

    body = b"x" * (3 << 20)
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    pieces = b"".join(b"%x\r\n%b\r\n" % (n, body[:n]) for n in (1, 70_000, 5, 300_000))
    chunked = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serve(app, Settings()) as server, wire(server.port) as one:
        await one.send(REQUESTS["small"] + head + body + chunked + pieces + b"0\r\n\r\n")
        replies = [(await one.reply()).body for _ in range(3)]

    assert (replies, size) == ([b"hello"] * 3, len(body) + 370_006)


async def test_many_small_fragments_are_read_fairly() -> None:
    settings = Settings(inbound_bytes=MIB, message_bytes=MIB)
    async with serve(echo, settings) as server:
        async with wire(server.port) as flood, wire(server.port) as other:
            await flood.open_socket()
            await other.open_socket()
            await flood.send(frame(b"", fin=False) + frame(b"", CONTINUED, fin=False) * 9000)
            await other.send(frame(b"quick"))
            assert await other.frame() == (TEXT, b"quick")
            assert not server.counted('repl_connections_refused_total{reason="inbound"}')
            assert await flood.close_code() == 1013


async def test_data_after_the_close_is_ignored() -> None:
    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    async with serve(app, Settings(inbound_bytes=MIB)) as server, wire(server.port) as client:
        await client.open_socket()
        assert await client.close_code() == 1000
        await client.send(frame(bytes(MIB // 2)) * 4 + frame(b"\3\xe8", CLOSE))

        assert await client.ended() == b""
        assert not server.counted('repl_connections_refused_total{reason="inbound"}')


async def test_a_disconnected_peer_is_detected_by_its_silence() -> None:
    async with serve(echo, Settings(ping_s=0.05)) as server, wire(server.port) as gone:
        assert (await gone.open_socket()).status == 101

        assert await gone.close_code() == 1011
        assert server.counted('repl_connections_refused_total{reason="no_pong"}') == 1


async def test_a_client_whose_message_is_queued_here_is_not_taken_as_disconnected() -> None:
    """While the client does not read, it sends no pong."""
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        stuck.set()
        await go_on.wait()
        await send({"type": "websocket.send", "text": (await receive())["text"]})
        await receive()

    async with serve(app, Settings()) as server, wire(server.port) as waiting:
        await waiting.open_socket()
        await waiting.send(frame(b"one") + frame(b"two") + frame(b"three"))
        await stuck.wait()
        for _ in range(3):
            await skip(20)
            assert (await waiting.frame())[0] == PING
            await skip(20)  # in which no pong came
        go_on.set()
        opcode, said = await waiting.frame()
        while opcode == PING:
            opcode, said = await waiting.frame()

        assert (opcode, said) == (TEXT, b"two")


async def test_a_client_that_sends_slowly_is_not_taken_as_disconnected() -> None:
    async with serve(echo, Settings(body_s=600)) as server, wire(server.port) as slow:
        await slow.open_socket()
        await slow.send(frame(b"", announced=MIB))
        for part in range(1, 9):
            await skip(20)
            assert (await slow.frame())[0] == PING  # which it cannot answer inside a frame
            await slow.send(b"x" * (MIB // 8))
            await until(lambda: server.inbound.buffered == part * MIB // 8 % MIB)  # noqa: B023
            await skip(20)

        opcode, said = await slow.frame()
        while opcode == PING:
            opcode, said = await slow.frame()
        assert (opcode, said) == (TEXT, b"x" * MIB)


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_an_oversized_message_is_refused_from_its_header(opcode) -> None:
    async with serve(echo, Settings(message_bytes=MIB)) as server, wire(server.port) as large:
        await large.open_socket()
        await large.send(frame(b"", opcode, announced=1 << 30))

        assert await large.close_code() == 1009


async def test_a_refused_client_that_keeps_sending_still_gets_the_reason() -> None:
    async with serve(echo, Settings(message_bytes=MIB)) as server, wire(server.port) as large:
        await large.open_socket()
        await large.send(frame(bytes(8 * MIB), announced=1 << 30))

        assert await large.close_code() == 1009


async def test_fragments_of_a_message_count_together() -> None:
    async with serve(echo, Settings(message_bytes=1000)) as server, wire(server.port) as large:
        await large.open_socket()
        await large.send(frame(b"x" * 600, fin=False) + frame(b"x" * 600, CONTINUED, fin=False))

        assert await large.close_code() == 1009


async def test_partial_messages_together_are_bounded_and_complete_ones_pass() -> None:
    settings = Settings(message_bytes=2 * MIB, inbound_bytes=4 * MIB)
    async with serve(echo, settings) as server:
        async with wire(server.port) as one, wire(server.port) as two, wire(server.port) as three:
            for each in (one, two, three):
                await each.open_socket()
            for each in (one, two):
                await each.send(frame(bytes(3 * MIB // 2), announced=2 * MIB))
            await until(lambda: server.inbound.buffered == 3 * MIB)
            await three.send(frame(bytes(3 * MIB // 2), announced=2 * MIB))
            assert await three.close_code() == 1013
            assert server.inbound.buffered <= 4 * MIB

            async with connect(
                f"ws://127.0.0.1:{server.port}/ws", max_size=None, open_timeout=60
            ) as fine:
                await fine.send("x" * (MIB // 2))
                assert len(await fine.recv()) == MIB // 2
            await one.send(bytes(MIB // 2))
            assert len((await one.frame())[1]) == 2 * MIB
        await until(lambda: not server.inbound.buffered)


async def test_clients_without_a_key_get_a_part_of_the_buffers() -> None:
    settings = Settings(
        **PUBLIC, message_bytes=MIB // 2, inbound_bytes=4 * MIB, quota=TenantQuota()
    )
    async with serve(echo, settings) as server:
        async with wire(server.port) as one, wire(server.port) as two, wire(server.port) as three:
            for count, each in enumerate((one, two, three), 1):
                await each.open_socket()
                await each.send(frame(bytes(400_000), announced=MIB // 2))
                if each is not three:
                    await until(lambda: server.inbound.buffered == count * 400_000)  # noqa: B023

            assert await three.close_code() == 1013
            assert server.inbound.buffered < MIB


async def test_a_message_counts_until_the_application_receives_the_next() -> None:
    held = []

    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        held.append(server.inbound.buffered)
        await send({"type": "websocket.send", "text": "one"})
        await receive()

    async with serve(app, Settings(ping_s=None)) as server, wire(server.port) as client:
        await client.open_socket()
        await client.send(frame(bytes(MIB)))
        await client.frame()
        await until(lambda: not server.inbound.buffered)

        assert held == [MIB]


async def test_empty_fragments_count() -> None:
    settings = Settings(inbound_bytes=MIB, message_bytes=MIB)
    async with serve(echo, settings) as server, wire(server.port) as flood:
        await flood.open_socket()
        with suppress(ConnectionError):
            await flood.send(frame(b"", fin=False) + frame(b"", CONTINUED, fin=False) * 100_000)

        assert await flood.close_code() == 1013


async def test_a_message_that_stays_incomplete_ends_the_socket() -> None:
    async with serve(echo, Settings(ping_s=None)) as server, wire(server.port) as slow:
        await slow.open_socket()
        await slow.send(frame(bytes(8 * MIB), announced=16 * MIB))
        await until(lambda: server.inbound.buffered == 8 * MIB)
        await skip(30)
        assert server.inbound.buffered  # so much may take two minutes more
        await skip(130)

        assert await slow.close_code() == 1008


async def test_a_message_queued_here_is_not_slow() -> None:
    stuck, go_on = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        stuck.set()
        await go_on.wait()
        await send({"type": "websocket.send", "text": (await receive())["text"]})
        await receive()

    async with serve(app, Settings()) as server, wire(server.port) as patient:
        await patient.open_socket()
        # The third is half; it is not read on before the first two are taken.
        await patient.send(frame(b"one") + frame(b"two") + frame(b"three")[:5])
        await stuck.wait()
        for _ in range(3):
            await skip(20)
            assert (await patient.frame())[0] == PING
            await skip(20)
        go_on.set()
        opcode, said = await patient.frame()
        while opcode == PING:
            opcode, said = await patient.frame()

        assert (opcode, said) == (TEXT, b"two")


async def test_invalid_utf8_ends_the_socket_with_1007() -> None:
    async with serve(echo, Settings()) as server, wire(server.port) as client:
        await client.open_socket()
        await client.send(frame(b"\xff\xfe"))

        assert await client.close_code() == 1007


async def test_a_client_of_the_websockets_library_works() -> None:
    async with serve(echo, Settings()) as server:
        async with connect(
            f"ws://127.0.0.1:{server.port}/ws", max_size=None, open_timeout=60
        ) as client:
            for text in ("x", "y" * 200_000, "z" * (4 * MIB)):
                await client.send(text)
                assert await client.recv() == text
            await client.send(part for part in ("a", "b", "c"))
            assert await client.recv() == "abc"
        await until(lambda: not server.connections.open)
        assert server.inbound.buffered == 0


async def test_refusals_of_connections_are_json_with_an_id() -> None:
    async with serve(hello, Settings(connections=0)) as server, wire(server.port) as client:
        refused = await client.reply()

        assert json.loads(refused.body).keys() == {"code", "message", "id", "retry_after"}
        assert refused.headers["connection"] == "close"
