"""Every request is authenticated and limited in rate, size and time."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from repl_server import guard
from repl_server.auth import APIKeys, new_key
from repl_server.settings import Settings
from repl_server.tenants import TenantQuota
from tests.server.raw_connections import ask, request, serve, skip, turns, wire
from tests.waiting import until

KEY, LINE = new_key("alice")
KEYS = APIKeys.parse([LINE])
MIB = 1 << 20


async def who(asked: Request) -> PlainTextResponse:
    return PlainTextResponse(str(asked.state.tenant))


async def length(asked: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await asked.body())))


async def wait(asked: Request) -> PlainTextResponse:
    await asyncio.Event().wait()
    return PlainTextResponse("never")


async def fail_late(asked: Request) -> StreamingResponse:
    async def pieces():
        yield b"begun"
        raise ValueError("what the user's document said")

    return StreamingResponse(pieces())


async def healthy(asked: Request) -> PlainTextResponse:
    return PlainTextResponse("healthy")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(f"{socket.state.tenant}: {text}")


APP = Starlette(
    routes=[
        Route("/who", who),
        Route("/length", length, methods=["POST"]),
        Route("/contexts/{sha256}", length, methods=["PUT"]),
        Route("/wait", wait),
        Route("/fail-late", fail_late),
        Route("/health", healthy, methods=["GET", "POST"]),
        WebSocketRoute("/ws", echo),
    ]
)


def noted(caplog: Any, event: str) -> list[dict[str, Any]]:
    """Return the fields of each log record of `event`."""
    records = [each for each in caplog.records if getattr(each, "event", "") == event]
    return [record.fields for record in records]


@pytest.fixture(autouse=True)
def lingering(monkeypatch) -> None:
    """Give a refused client longer to finish sending than this process may stall."""
    monkeypatch.setattr(guard, "LINGER_S", 60.0)


async def test_the_application_receives_the_tenant() -> None:
    async with serve(APP, Settings(), KEYS) as server:
        assert (await ask(server.port, "GET", "/who", x_api_key=KEY)).body == b"key alice"
        url = f"ws://127.0.0.1:{server.port}/ws"
        headers = {"Authorization": f"Bearer {KEY}"}
        async with connect(url, additional_headers=headers, open_timeout=60) as socket:
            await socket.send("hello")
            assert await socket.recv() == "key alice: hello"


async def test_without_a_key_the_answer_is_401_for_routes_and_sockets(caplog) -> None:
    async with serve(APP, Settings(), KEYS) as server:
        refused = await ask(server.port, "GET", "/who")
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["connection"] == "close"
        assert refused.data.keys() == {"code", "message", "id"}
        with pytest.raises(InvalidStatus) as error:
            async with connect(f"ws://127.0.0.1:{server.port}/ws", open_timeout=60):
                pass
        assert error.value.response.status_code == 401
        assert json.loads(error.value.response.body)["code"] == "UNAUTHENTICATED"
        assert server.counted('repl_refusals_total{code="UNAUTHENTICATED"}') == 2
    assert {record.name for record in caplog.records} == {"repl_server"}


async def test_unknown_keys_in_a_row_are_slow_and_right_ones_are_not(
    monkeypatch,
) -> None:
    slept, gate = [], asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await gate.wait()

    monkeypatch.setattr(guard, "sleep", sleep)
    async with serve(APP, Settings(), KEYS) as server:
        for _ in range(guard.BURST):
            assert (await ask(server.port, "GET", "/who", x_api_key="wrong")).status == 401
        late = [asyncio.create_task(ask(server.port, "GET", "/who", x_api_key="no")) for _ in "abc"]
        await until(lambda: len(slept) == 3)
        assert (await ask(server.port, "GET", "/who", x_api_key=KEY)).body == b"key alice"
        assert not any(task.done() for task in late)
        gate.set()
        assert [(await task).status for task in late] == [401] * 3


async def test_large_bodies_of_a_client_are_received_a_few_at_a_time() -> None:
    held, most, gate = 0, 0, asyncio.Event()

    async def slow(asked: Request) -> PlainTextResponse:
        nonlocal held, most
        body = await asked.body()
        held += 1
        most = max(most, held)
        await gate.wait()
        held -= 1
        return PlainTextResponse(str(len(body)))

    app = Starlette(routes=[Route("/length", slow, methods=["POST"])])
    async with serve(app, Settings()) as server:
        big = [
            asyncio.create_task(ask(server.port, "POST", "/length", b"x" * (2 * MIB)))
            for _ in range(8)
        ]
        await until(lambda: held == 2)
        small = asyncio.create_task(ask(server.port, "POST", "/length", b"x"))
        await until(lambda: held == 3)
        assert server.inbound.buffered < 6 * MIB
        gate.set()
        assert {(await each).body for each in big} == {b"%d" % (2 * MIB)}
        assert (await small).body == b"1"

    assert most == 3
    assert server.inbound.buffered == 0


async def test_pages_of_other_sites_are_refused_for_routes_and_sockets() -> None:
    async with serve(APP, Settings()) as server:
        foreign = await ask(server.port, "GET", "/who", origin="http://pages.example")
        assert (foreign.status, foreign.data["code"]) == (403, "FORBIDDEN")
        rebound = await ask(server.port, "GET", "/who", host="pages.example")
        assert rebound.status == 403
        async with wire(server.port) as socket:
            assert (await socket.open_socket(origin="http://pages.example")).status == 403


async def test_only_health_is_public() -> None:
    async with serve(APP, Settings(quota=TenantQuota(requests_per_second=0.1)), KEYS) as server:
        for _ in range(3):
            answered = await ask(server.port, "GET", "/health", origin="http://pages.example")
            assert (answered.status, answered.body) == (200, b"healthy")
            assert answered.headers["connection"] == "close"
        assert (await ask(server.port, "GET", "/health/")).status == 401


async def test_requests_have_a_rate_limit_with_retry_after() -> None:
    async with serve(APP, Settings(quota=TenantQuota(requests_per_second=0.001))) as server:
        assert (await ask(server.port, "GET", "/who")).status == 200
        refused = await ask(server.port, "GET", "/who")

        assert (refused.status, refused.data["code"]) == (429, "RATE_LIMITED")
        assert 900 < refused.data["retry_after"] <= 1000
        assert refused.headers["retry-after"] == str(math.ceil(refused.data["retry_after"]))


async def test_failed_keys_are_rate_limited_by_address() -> None:
    quota = TenantQuota(requests_per_second=0.001)
    async with serve(APP, Settings(quota=quota), KEYS) as server:
        codes = [(await ask(server.port, "GET", "/who", x_api_key="?")).status for _ in range(3)]
        assert codes == [401, 429, 429]
        assert (await ask(server.port, "GET", "/who", x_api_key=KEY)).status == 200


async def test_a_tenant_has_a_limit_of_concurrent_requests() -> None:
    async with serve(APP, Settings(quota=TenantQuota(connections=1))) as server:
        async with wire(server.port) as one:
            await one.open_socket()
            async with wire(server.port) as two:
                assert (await two.reply()).data["code"] == "QUOTA_EXCEEDED"
        await until(lambda: not server.connections.open)
        assert (await ask(server.port, "GET", "/who")).status == 200


@pytest.mark.parametrize("path", ["/ws", "/wait"])
async def test_a_request_counts_until_it_is_over_however_it_ends(path) -> None:
    settings = Settings(quota=TenantQuota(connections=1))
    async with serve(APP, settings, KEYS) as server:
        async with wire(server.port) as one:
            if path == "/ws":
                await one.open_socket(x_api_key=KEY)
            else:
                await one.send(request("GET", path, x_api_key=KEY))
            await until(lambda: bool(server.state.tasks))
            refused = await ask(server.port, "GET", "/who", x_api_key=KEY)
            assert refused.data["code"] == "QUOTA_EXCEEDED"
        if path == "/wait":
            for task in list(server.state.tasks):
                task.cancel()
        await until(lambda: not server.state.tasks)
        assert (await ask(server.port, "GET", "/who", x_api_key=KEY)).status == 200


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    async with serve(APP, Settings(message_bytes=1000)) as server, wire(server.port) as large:
        await large.send(request("POST", "/length", content_length=str(1 << 30)))
        refused = await large.reply()

        assert (refused.status, refused.data["code"]) == (413, "TOO_LARGE")
        assert refused.data["limit"] == 1000 and "uploaded" in refused.data["message"]


async def test_a_length_may_begin_with_zeros() -> None:
    async with serve(APP, Settings()) as server:
        padded = "0" * 5000 + "2"
        assert (
            await ask(server.port, "POST", "/length", b"{}", content_length=padded)
        ).body == b"2"


async def test_an_unread_body_is_skipped() -> None:
    """The answer is sent at once, and the connection goes on after the body."""
    body = bytes(MIB)
    async with serve(APP, Settings(), KEYS) as server, wire(server.port) as client:
        await client.send(request("POST", "/nothing", content_length=str(MIB), x_api_key=KEY))
        assert (await client.reply()).status == 404
        await client.send(body + request("GET", "/who", x_api_key=KEY))
        assert (await client.reply()).body == b"key alice"


async def test_chunk_headers_do_not_count() -> None:
    async with serve(APP, Settings()) as server, wire(server.port) as client:
        await client.send(request("POST", "/length", transfer_encoding="chunked"))
        for _ in range(100):
            for part in (b"1;" + b"x" * 1000 + b"\r\n", b"y\r\n"):
                await client.send(part)
                await turns()  # in which the server reads that alone
        await client.send(b"0\r\n\r\n")
        assert (await client.reply()).body == b"100"


async def test_data_after_a_body_is_no_header() -> None:
    """Otherwise a client could send headers there that only its proxy may set."""
    settings = Settings(host="0.0.0.0", no_auth=True, trusted_proxies=("127.0.0.1",))
    seen = []

    async def app(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.append((str(scope["state"]["tenant"]), [name for name, _ in scope["headers"]]))
        await PlainTextResponse("ok")(scope, receive, send)

    chunked = {"transfer_encoding": "chunked", "x_forwarded_for": "203.0.113.7"}
    async with serve(app, settings) as server, wire(server.port) as client:
        trailer = b"0\r\nx-forwarded-for: 198.51.100.1\r\n\r\n"
        await client.send(request("POST", "/", **chunked) + b"2\r\n{}\r\n" + trailer)
        assert (await client.reply()).status == 200

    headers = [b"host", b"transfer-encoding", b"x-forwarded-for"]
    assert seen == [("address 203.0.113.7", headers)]


async def test_a_refused_client_that_keeps_sending_a_body_still_gets_the_reason() -> None:
    async with serve(APP, Settings(message_bytes=1000)) as server, wire(server.port) as large:
        body = bytes(4 * MIB)
        await large.send(request("POST", "/length", body))

        assert (await large.reply()).status == 413


async def test_a_body_that_grows_too_large_is_refused_during_the_upload() -> None:
    async with serve(APP, Settings(message_bytes=1000)) as server, wire(server.port) as large:
        await large.send(request("POST", "/length", transfer_encoding="chunked"))
        await large.send(b"258\r\n" + bytes(600) + b"\r\n")
        await large.send(b"258\r\n" + bytes(600) + b"\r\n")

        assert (await large.reply()).data["code"] == "TOO_LARGE"


@pytest.mark.parametrize("size", [0, 1, 1000])
async def test_bodies_up_to_the_limit_arrive_complete(size) -> None:
    async with serve(APP, Settings(message_bytes=1000)) as server:
        assert (await ask(server.port, "POST", "/length", bytes(size))).body == b"%d" % size


async def test_uploads_have_a_limit_of_their_own() -> None:
    settings = Settings(message_bytes=1000, context_bytes=MIB, inbound_bytes=1000)
    async with serve(APP, settings) as server:
        taken = await ask(server.port, "PUT", "/contexts/abc", bytes(MIB))
        assert taken.body == b"%d" % MIB
        refused = await ask(server.port, "PUT", "/contexts/abc", bytes(MIB + 1))
        assert refused.data["limit"] == MIB
        assert (await ask(server.port, "POST", "/length", bytes(1001))).status == 413


@pytest.mark.parametrize("sent", [b"", b"some of it"])
async def test_a_missing_body_has_a_time_limit(sent) -> None:
    async with serve(APP, Settings()) as server, wire(server.port) as slow:
        await slow.send(request("POST", "/length", content_length="1000") + sent)
        await until(lambda: server.inbound.buffered == len(sent) and bool(server.state.tasks))
        await skip(31)
        refused = await slow.reply()

        assert (refused.status, refused.data["code"]) == (408, "TOO_SLOW")


async def test_a_trickled_body_has_a_time_limit() -> None:
    async with serve(APP, Settings()) as server, wire(server.port) as slow:
        await slow.send(request("POST", "/length", content_length="1000000"))
        for drop in range(1, 11):
            await slow.send(b"x")
            await until(lambda: server.inbound.buffered == drop)  # noqa: B023 (waited for at once)
            await skip(1)
        answered = asyncio.create_task(slow.reply())
        await skip(21)

        assert (await answered).status == 408


async def test_a_request_that_takes_long_is_not_a_slow_body() -> None:
    """The time limit covers the body, not the work; an application may wait for a disconnect."""

    async def app(scope, receive, send) -> None:
        assert not (await receive())["more_body"]
        gone = asyncio.create_task(receive())
        await skip(60)
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"done"})
        assert (await gone)["type"] == "http.disconnect"

    async with serve(app, Settings()) as server:
        assert (await ask(server.port, "POST", "/", b"body")).body == b"done"


async def test_bodies_of_all_together_are_bounded() -> None:
    settings = Settings(inbound_bytes=MIB, message_bytes=MIB)
    async with serve(APP, settings) as server, wire(server.port) as one, wire(server.port) as two:
        for each in (one, two):
            await each.send(request("POST", "/length", content_length=str(MIB)))
        await one.send(bytes(MIB - 1))
        await until(lambda: server.inbound.buffered == MIB - 1)
        await two.send(bytes(1000))
        refused = await two.reply()
        assert (refused.status, refused.data["code"]) == (429, "RATE_LIMITED")

        await one.send(b"x")
        assert (await one.reply()).body == b"%d" % MIB
        await until(lambda: not server.inbound.buffered)


async def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_nothing(caplog) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    async with serve(APP, Settings()) as server:
        async with wire(server.port) as gone:
            await gone.send(request("POST", "/length", content_length=str(MIB)) + bytes(1000))
            await until(lambda: server.inbound.buffered == 1000)
        await until(lambda: not server.inbound.buffered)
        await until(lambda: noted(caplog, "request"))
        assert not noted(caplog, "fault")


async def test_a_server_error_has_an_id_and_is_logged_without_contents(caplog) -> None:
    caplog.set_level(logging.INFO, "repl_server")

    async def app(scope, receive, send) -> None:
        raise ValueError("what the user's document said")

    async with serve(app, Settings()) as server:
        failed = await ask(server.port, "GET", "/")
        seen = noted(caplog, "fault")

    assert (failed.status, failed.data["code"]) == (500, "SESSION_ERROR")
    assert [each["id"] for each in seen] == [failed.data["id"]]
    assert seen[0]["error"] == "ValueError"
    assert "document" not in str([record.__dict__ for record in caplog.records]) + str(failed)


@pytest.mark.parametrize("accepted", [False, True])
async def test_an_error_of_a_socket_has_its_close_code(accepted) -> None:
    async def app(scope, receive, send) -> None:
        await receive()
        if accepted:
            await send({"type": "websocket.accept"})
        raise ValueError("what the user's document said")

    async with serve(app, Settings()) as server, wire(server.port) as client:
        answer = await client.open_socket()
        if accepted:
            assert await client.close_code() == 1011
        else:
            assert (answer.status, answer.data["code"]) == (500, "SESSION_ERROR")
        assert server.counted('repl_refusals_total{code="SESSION_ERROR"}') == 1


async def test_a_fault_behind_a_begun_answer_ends_the_connection() -> None:
    async with serve(APP, Settings()) as server, wire(server.port) as client:
        await client.send(request("GET", "/fail-late"))
        rest = await client.ended()

        assert b"begun" in rest
        assert not rest.endswith(b"0\r\n\r\n")


async def test_requests_are_logged_without_their_queries(caplog) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    async with serve(APP, Settings(), KEYS) as server:
        await ask(server.port, "GET", "/who?token=secret", x_api_key=KEY)
    (told,) = noted(caplog, "request")

    assert {**told, "seconds": 0} == {
        "tenant": "key alice",
        "method": "GET",
        "path": "/who",
        "status": 200,
        "seconds": 0,
    }
    assert "secret" not in str([record.__dict__ for record in caplog.records])
    assert KEY not in str([record.__dict__ for record in caplog.records])
