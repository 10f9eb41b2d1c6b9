"""Addresses of servers, and keys that are sent to the server alone."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import socket
import traceback

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from repl_env.client.address import ServerAccess, ServerAddress
from repl_env.client.client import REPLEnv
from repl_env.errors import (
    AuthenticationFailed,
    CapacityReached,
    EpisodeAborted,
    NotSupported,
    QuotaExceeded,
    ServerError,
    ServerUnavailable,
)
from repl_env.llm.spec import LLM
from tests.repl_env.client.connection.certificates import of_this_machine
from tests.repl_env.client.connection.relay import Proxy
from tests.repl_env.client.scripted_server import Scripted, answered, kept_port, observation
from tests.repl_env.environment_internals import client_session

KEY = "sk-a-secret-of-this-client"


@pytest.mark.parametrize(
    ("base_url", "said", "socket_url"),
    [
        ("http://host:8000", "http://host:8000", "ws://host:8000/ws"),
        ("ws://host", "http://host", "ws://host/ws"),
        ("https://a-b.hf.space", "https://a-b.hf.space", "wss://a-b.hf.space/ws"),
        ("wss://host:443/", "https://host", "wss://host/ws"),
        ("https://host/prefix/", "https://host/prefix", "wss://host/prefix/ws"),
        ("ws://host/prefix/ws", "http://host/prefix", "ws://host/prefix/ws"),
        ("HTTP://Host:1", "http://host:1", "ws://host:1/ws"),
        ("http://[::1]:8000", "http://[::1]:8000", "ws://[::1]:8000/ws"),
        ("localhost:8000", "http://localhost:8000", "ws://localhost:8000/ws"),
    ],
)
def test_an_address_has_several_notations(base_url, said, socket_url):
    address = ServerAddress.parse(base_url)

    assert (str(address), address.socket) == (said, socket_url)


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "ftp://host",
        "host:8000",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://a..b",
        f"http://{'a' * 64}.example",
        "http://ho\0st",
        "http://\udce4",
        "http://[::1",
        f"http://user:{KEY}@host",
        f"http://host/?token={KEY}",
        f"http://host/#{KEY}",
    ],
)
def test_an_invalid_address_is_an_error_without_its_secrets(base_url):
    with pytest.raises(ValueError) as caught:
        REPLEnv(base_url)

    assert KEY not in str(caught.value)
    assert "base_url" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"base_url": None}, TypeError),
        ({"api_key": ""}, ValueError),
        ({"api_key": b"key"}, TypeError),
        ({"api_key": f"{KEY}\r\nX: y"}, ValueError),
        ({"api_key": f"{KEY}é"}, ValueError),
        ({"headers": {"X": 7}}, TypeError),
        ({"headers": {"X": f"{KEY}\n"}}, ValueError),
        ({"headers": {"": "x"}}, ValueError),
        ({"connect_timeout_s": 0}, ValueError),
        ({"message_timeout_s": -1}, ValueError),
        ({"message_timeout_s": "60"}, TypeError),
        ({"max_message_size_mb": float("inf")}, ValueError),
        ({"ping_s": True}, TypeError),
        ({"provider": object()}, TypeError),
    ],
)
def test_arguments_are_checked_before_anything_is_connected(arguments, error):
    with pytest.raises(error) as caught:
        REPLEnv(**{"base_url": "http://host", **arguments})

    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, {"Authorization": f"Bearer {KEY}"}),
        ({"X-More": "1"}, {"Authorization": f"Bearer {KEY}", "X-More": "1"}),
        ({"authorization": "Bearer hf"}, {"Authorization": "Bearer hf", "X-API-Key": KEY}),
    ],
)
async def test_a_key_goes_in_a_header(headers, expected):
    with Scripted() as server:
        async with REPLEnv(server.url, api_key=KEY, headers=headers):
            pass

    assert {name: server.handshakes[0].get(name) for name in expected} == expected


async def test_a_key_is_in_no_repr_and_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    with Scripted() as server:
        async with REPLEnv(server.url, api_key=KEY, headers={"X-More": KEY}) as env:
            await env.reset(hf_token=KEY)
            said = [
                env,
                env.sync(),
                env.__dict__,
                vars(client_session(env)),
                client_session(env).access,
            ]

    assert KEY not in repr(said)
    assert repr(env) == f"<REPLEnv {server.url} closed>"
    ours = [each for each in caplog.records if not each.name.startswith("websockets.server")]
    assert KEY not in "".join(each.getMessage() for each in ours)


def test_a_client_cannot_be_pickled_with_its_key():
    with pytest.raises(TypeError, match="another"):
        pickle.dumps(REPLEnv("http://host", api_key=KEY))


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (401, b"", AuthenticationFailed, "HTTP_401"),
        (403, b"<html>", AuthenticationFailed, "HTTP_403"),
        (404, b"", NotSupported, "HTTP_404"),
        (500, b"", ServerError, "HTTP_500"),
        (502, b"", ServerUnavailable, "HTTP_502"),
        (401, b'{"code": "UNAUTHENTICATED", "message": "no"}', AuthenticationFailed, None),
        (503, b'{"data": {"code": "CAPACITY_REACHED"}}', CapacityReached, None),
        (429, b'{"detail": {"code": "RATE_LIMITED", "retry_after": 3}}', QuotaExceeded, None),
    ],
)
async def test_a_refusal_by_http_is_the_error_of_its_code_or_status(status, body, error, code):
    with Scripted(answer=answered(status, body)) as server:
        with pytest.raises(error) as caught:
            await REPLEnv(server.url).connect()

    assert type(caught.value) is error
    assert code is None or caught.value.code == code


async def test_a_key_repeated_by_the_server_is_not_in_the_error():
    body = f'{{"code": "UNAUTHENTICATED", "message": "the key {KEY} is wrong"}}'.encode()
    with Scripted(answer=answered(401, body)) as server:
        with pytest.raises(AuthenticationFailed, match=r"the key .* is wrong") as caught:
            await REPLEnv(server.url, api_key=KEY).connect()

    assert KEY not in str(caught.value)


async def test_a_redirect_to_another_server_is_not_followed():
    with Scripted() as other:
        place = f"{other.url}/ws?key={KEY}".replace("http", "ws")
        with Scripted(answer=answered(307, Location=place)) as server:
            with pytest.raises(ServerError, match="REDIRECTED") as caught:
                await REPLEnv(server.url, api_key=KEY).connect()

    assert other.handshakes == []
    assert other.url.removeprefix("http") in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "locations",
    [["http://[no"], ["/moved/ws", "/moved/ws"], [f"http://other.invalid/{'a' * 170}{KEY}"]],
)
async def test_a_redirect_that_leads_nowhere_is_an_error_without_the_key(locations):
    def answer(request):
        headers = Headers([("location", place) for place in locations])
        return Response(307, "Temporary Redirect", headers)

    with Scripted(answer=answer) as server:
        with pytest.raises(ServerError, match="REDIRECTED") as caught:
            await REPLEnv(server.url, api_key=KEY).connect()

    assert KEY[:8] not in str(caught.value)
    assert len(server.handshakes) == 1


async def test_a_key_repeated_by_the_server_is_in_no_attribute_of_the_error():
    said = {"code": f"UNKNOWN {KEY}", "message": "no", "id": KEY, "seen": [{KEY: f"Bearer {KEY}"}]}
    with Scripted(answer=answered(401, json.dumps(said).encode())) as server:
        with pytest.raises(ServerError) as caught:
            await REPLEnv(server.url, api_key=KEY).connect()

    assert caught.value.details == {"seen": [{"[secret]": "[secret]"}]}
    assert KEY not in repr(vars(caught.value))


@pytest.mark.parametrize(
    "given",
    [
        {"hf_token": KEY, "llm_model": "m"},
        {"llm": LLM("m", "http://models.example/v1", api_key=KEY)},
        {"llm": LLM("m", "http://models.example/v1", headers={"X-Key": f"Bearer {KEY}"})},
    ],
    ids=["token", "key", "header"],
)
async def test_a_model_s_key_repeated_by_the_server_is_not_in_the_error(given):
    async def story(peer):
        await peer.session()
        reset = await peer.next("reset")
        await peer.refuse(reset, "FORBIDDEN", seen=reset["data"], message=f"not {KEY}")
        await peer.reply(await peer.next("reset"), observation())
        await peer.refuse(await peer.next("step"), "EXECUTION_ERROR", seen=KEY)
        await peer.refuse(await peer.next("step"), "EPISODE_ABORTED", message=f"sandbox: {KEY}")
        await peer.gone()

    with Scripted(story) as server:
        env = REPLEnv(server.url)
        with pytest.raises(ServerError) as refused:
            await env.reset(**given)
        await env.reset()
        with pytest.raises(ServerError) as later:
            await env.execute("1")
        with pytest.raises(EpisodeAborted) as aborted:
            await env.execute("1")
        await env.close()

    assert KEY not in str(aborted.value)
    assert KEY not in repr(vars(refused.value)) + str(refused.value)
    assert KEY not in repr(vars(later.value)) + str(later.value)


async def test_a_handshake_that_repeats_a_key_is_an_error_without_it():
    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        answer = f"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: {KEY}\r\n\r\n"
        writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnavailable, match=r"\[secret\]") as caught:
            await REPLEnv(f"http://127.0.0.1:{port}", api_key=KEY).connect()

    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_handshake_that_is_refused_as_a_request_is_an_error_of_its_status():
    body = b'{"code": "NOT_RESET", "message": "reset first"}'
    with Scripted(answer=answered(503, body)) as server:
        with pytest.raises(ServerUnavailable, match="status 503"):
            await REPLEnv(server.url).connect()


async def test_a_redirect_on_the_same_server_is_followed():
    def answer(request):
        return None if request.path == "/moved/ws" else answered(307, Location="/moved/ws")(request)

    with Scripted(answer=answer) as server:
        async with REPLEnv(server.url, api_key=KEY) as env:
            await env.reset()

    assert len(server.handshakes) == 2


async def test_a_server_below_a_path_is_reached_there():
    paths = []

    def answer(request):
        paths.append(request.path)

    with Scripted(answer=answer) as server:
        async with REPLEnv(f"{server.url}/some/prefix/") as env:
            assert env.base_url == f"{server.url}/some/prefix"

    assert paths == ["/some/prefix/ws"]


async def test_a_port_without_a_listener_is_a_connection_error():
    with kept_port() as port:
        with pytest.raises(ServerUnavailable, match="no connection to http://127") as caught:
            await REPLEnv(f"http://127.0.0.1:{port}", api_key=KEY).connect()

    assert isinstance(caught.value, ConnectionError)


async def test_a_server_that_says_nothing_at_all_is_an_error_within_the_time():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerUnavailable, match="timed out"):
            await REPLEnv(url, connect_timeout_s=0.05).connect()


async def test_a_server_without_websockets_is_an_error():
    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnavailable):
            await REPLEnv(f"http://127.0.0.1:{port}").connect()


async def test_a_proxy_of_the_environment_is_asked_for_servers_elsewhere(monkeypatch):
    with Scripted() as server:
        async with Proxy(server.port) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:password@"))
            async with REPLEnv("http://elsewhere.invalid", api_key=KEY) as env:
                await env.reset()

    assert proxy.asked[0].startswith("CONNECT elsewhere.invalid:80")  # type: ignore[attr-defined]
    assert KEY not in proxy.asked[0]  # type: ignore[attr-defined]
    assert server.kinds == ["open", "reset", "close"]


async def test_a_proxy_that_refuses_is_an_error_without_its_password(monkeypatch):
    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://user:{KEY}@127.0.0.1:{port}")
        with pytest.raises(ServerUnavailable) as caught:
            await REPLEnv("https://elsewhere.invalid").connect()

    assert KEY not in str(caught.value)


async def test_a_proxy_is_not_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Scripted() as server:
        async with REPLEnv(server.url) as env:
            await env.reset()


@pytest.mark.parametrize(
    "proxy",
    [f"gopher://user:{KEY}@host", f"http://user:{KEY}#1@host:80", "http://[::1", "http://a..b"],
)
async def test_an_invalid_proxy_is_an_error_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(ServerUnavailable, match="proxy") as caught:
        await REPLEnv("https://elsewhere.invalid").connect()

    assert KEY not in str(caught.value)


async def test_a_proxy_that_needs_a_library_says_which(monkeypatch):
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(NotSupported, match="python-socks"):
        await REPLEnv("http://elsewhere.invalid").connect()


async def test_a_malformed_refusal_is_an_error_too():
    with Scripted(answer=answered(409, b'{"code": "EPISODE_DONE"}')) as server:
        with pytest.raises(ServerError, match="status 409"):
            await REPLEnv(server.url).connect()


def test_the_repr_of_an_access_has_the_address_and_no_key():
    assert KEY not in repr(ServerAccess.of("http://host", KEY, {"X": KEY}))


async def test_a_server_is_reached_by_tls_if_its_certificate_is_trusted(tmp_path):
    served, trusted = of_this_machine(tmp_path)
    with Scripted(tls=served) as server:
        async with REPLEnv(server.url, tls=trusted) as env:
            await env.reset()
        with pytest.raises(ServerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await REPLEnv(server.url).connect()

    assert server.kinds == ["open", "reset", "close"]
