"""The HTTP connection of uploads: proxies, TLS, refusals, and responses that do not end."""

from __future__ import annotations

import itertools
import threading
import traceback
from types import SimpleNamespace

import pytest

from repl_env.client import uploads
from repl_env.client.address import ServerAccess
from repl_env.client.uploads import HttpConnection, proxy_for
from repl_env.errors import (
    AuthenticationFailed,
    NotSupported,
    QuotaExceeded,
    ServerError,
    ServerUnavailable,
    TooLarge,
)
from tests.repl_env.client.connection.certificates import of_this_machine
from tests.repl_env.client.connection.relay import Proxy
from tests.repl_env.client.upload.upload_server import (
    DATA,
    KEY,
    KIB,
    Handler,
    Store,
    Trouble,
    breaks,
    fine,
    parcel,
)


def unending(*pieces: bytes) -> Trouble:
    """An answer that begins with the first of `pieces`; the others follow again and again."""

    def trouble(request: Handler) -> bool:
        if request.command == "HEAD":
            return False
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        request.close_connection = True
        request.wfile.write(pieces[0])
        while pieces[1:]:
            request.wfile.write(b"".join(pieces[1:]) * KIB)
        return True

    return trouble


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        unending(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        unending(CHUNKED + b"0\r\n", b"a: b\r\n"),
        unending(CHUNKED + b"-1\r\n", b"x" * KIB),
        unending(CHUNKED + b"-5\r\nx"),
    ],
    ids=["interim answers", "trailers", "a body of no length", "a body of less"],
)
async def test_an_endless_response_is_server_unavailable(answer):
    with Store(*[answer] * 20) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await uploads.upload([parcel()], store.access)


def test_a_trickled_response_has_the_same_time_limit(
    monkeypatch,
):
    hours, ended = itertools.count(step=3600), threading.Event()

    def trickling(request: Handler) -> bool:
        request.wfile.write(b"HTTP/1.1 200 ")
        while not ended.wait(0.001):
            request.wfile.write(b"O")
        return True

    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    with Store(trickling) as store, HttpConnection(store.access, 1800.0) as connection:
        with pytest.raises(ServerUnavailable, match="it does not end"):
            connection.request("HEAD", "/contexts/x", None, {})
        ended.set()


async def test_a_response_that_repeats_a_key_is_an_error_without_it():
    def repeats(request: Handler) -> bool:
        request.close_connection = True
        return bool(request.wfile.write(f"{KEY} is no status\r\n\r\n".encode()))

    with Store(*[repeats] * 20) as store:
        with pytest.raises(ServerUnavailable, match=r"\[secret\]") as caught:
            await uploads.upload([parcel()], store.access)

    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_pieces_have_a_maximum_size_whatever_the_server_accepts():
    with Store() as store:
        await uploads.upload([parcel()], store.access, max_chunk=1 << 40)

    assert store.asked[2] == "PUT bytes 262144-524287/1004000"


async def test_a_proxy_may_change_the_case_of_headers():
    def there_in_part(request: Handler) -> bool:
        return request.answer(404, **{"upload-offset": "262144"})

    with Store(there_in_part) as store:
        store.parts[parcel().sha256] = DATA[:262144]
        await uploads.upload([parcel()], store.access)

    assert store.asked[1].startswith("PUT bytes 262144-")


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {"code": "UNAUTHENTICATED", "message": f"not {KEY}"}, AuthenticationFailed),
        (413, None, TooLarge),
        (413, {"code": "TOO_LARGE", "message": "at most 1 GiB"}, TooLarge),
        (429, {"code": "QUOTA_EXCEEDED", "message": "too much"}, QuotaExceeded),
        (422, None, ServerError),
        (405, None, NotSupported),
        (507, {"code": "TOO_LARGE", "message": "no room"}, TooLarge),
        (202, {"received": "much"}, ServerError),
        (202, {"received": float("inf")}, ServerError),
        (202, None, ServerError),
    ],
)
async def test_a_refusal_is_an_error_without_the_key(status, body, error):
    def refuse(request: Handler) -> bool:
        request.rfile.read(int(request.headers["Content-Length"]))
        return request.answer(status, body)

    with Store(fine, refuse) as store:
        with pytest.raises(error) as caught:
            await uploads.upload([parcel()], store.access)

    assert type(caught.value) is error
    assert KEY not in str(caught.value)


async def test_a_refusal_before_the_body_was_read_is_understood():
    def refuse(request: Handler) -> bool:
        request.close_connection = True
        return request.answer(413, {"code": "TOO_LARGE", "message": "at most 7 bytes"})

    with Store(fine, refuse) as store:
        with pytest.raises(ServerError):
            await uploads.upload([parcel()], store.access)


async def test_a_redirect_is_not_followed():
    with (
        Store() as other,
        Store(lambda request: request.answer(307, Location=f"{other.access.address}")) as store,
    ):
        with pytest.raises(ServerError, match="REDIRECTED"):
            await uploads.upload([parcel()], store.access)

    assert other.asked == []


def test_the_connection_says_which_server_did_not_answer():
    with Store(breaks) as store:
        with HttpConnection(store.access, 60) as connection:
            with pytest.raises(ServerUnavailable, match="no answer from http://127"):
                connection.request("HEAD", "/contexts/x", None, {})


@pytest.mark.parametrize(
    ("environment", "secure", "found"),
    [
        ({}, True, None),
        ({"https_proxy": "http://a:1"}, True, "a"),
        ({"https_proxy": "http://a:1", "wss_proxy": "http://b:1"}, True, "b"),
        ({"http_proxy": "http://a:1"}, True, None),
        ({"http_proxy": "http://a:1"}, False, "a"),
        ({"http_proxy": "http://a:1", "no_proxy": "host"}, False, None),
    ],
)
def test_the_proxy_is_the_one_that_websockets_uses(monkeypatch, environment, secure, found):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(secure, "host", 443)

    assert (None if proxy is None else proxy.hostname) == found


async def test_a_context_is_sent_through_the_proxy(monkeypatch):
    with Store() as store:
        async with Proxy(store.port) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass%20word@"))
            await uploads.upload([parcel()], ServerAccess.of("http://elsewhere.invalid/base", KEY))

    assert store.whole == {parcel().sha256: DATA}
    assert proxy.asked[0].startswith("CONNECT elsewhere.invalid:80")  # type: ignore[attr-defined]
    assert "Basic dXNlcjpwYXNzIHdvcmQ=" in proxy.asked[0]  # type: ignore[attr-defined]  # user:pass word
    assert KEY not in proxy.asked[0]  # type: ignore[attr-defined]
    assert all("Proxy-Authorization" not in each for each in store.headers)


async def test_a_context_is_sent_over_tls(tmp_path):
    with Store(tls=of_this_machine(tmp_path)) as store:
        await uploads.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


@pytest.mark.parametrize("proxy", [f"socks5://user:{KEY}@host", f"http://user:{KEY}#1@host:80"])
def test_an_unsupported_proxy_is_an_error_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(NotSupported) as caught:
        proxy_for(True, "elsewhere", 443)

    assert KEY not in str(caught.value)
