"""Contexts on their way to a server: in pieces, resumed, refused; and which contexts those are."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from repl_env.client.connection import timeouts
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.session.request_builder import ResetArguments
from repl_env.client.upload import http_client, resumable_upload
from repl_env.client.upload.http_client import HttpConnection, proxy_for
from repl_env.client.upload.upload_body import LARGE, LATEST, UploadBody
from repl_env.errors import (
    AuthenticationFailed,
    NotSupported,
    QuotaExceeded,
    ServerError,
    ServerUnavailable,
    TooLarge,
)
from tests.repl_env.certificates import of_this_machine
from tests.repl_env.relay import Proxy

KEY = "sk-a-secret-of-this-client"
KIB = 1 << 10

# A test's response to a request before the store sees it: None lets it through.
Trouble: TypeAlias = Callable[["Handler"], bool]


class Store:
    """`PUT /contexts/{sha256}` as docs/endpoint.md has it, and a list of troubles to begin with."""

    def __init__(
        self, *troubles: Trouble, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    ) -> None:
        self.troubles = list(troubles)
        self._tls = tls
        self.parts: dict[str, bytes] = {}
        self.whole: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> Store:
        handler = type("Bound", (Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if self._tls is not None:
            self._server.socket = self._tls[0].wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def access(self) -> ServerAccess:
        if self._tls is None:
            return ServerAccess.of(f"http://127.0.0.1:{self.port}/base", KEY)
        return ServerAccess.of(f"https://127.0.0.1:{self.port}/base", KEY, None, self._tls[1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Store

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass

    @property
    def sha256(self) -> str:
        assert self.path.startswith("/base/contexts/"), self.path
        return self.path.rpartition("/")[2]

    def answer(self, status: int, body: Any = None, **headers: str) -> bool:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return True

    def begin(self) -> bool:
        self.store.asked.append(f"{self.command} {self.headers.get('Content-Range', '')}".strip())
        self.store.headers.append(dict(self.headers))
        return bool(self.store.troubles) and self.store.troubles.pop(0)(self)

    def do_HEAD(self) -> None:
        if not self.begin():
            held = self.store.parts.get(self.sha256, b"")
            if self.sha256 in self.store.whole:
                self.answer(200)
            else:
                self.answer(404, **({"Upload-Offset": str(len(held))} if held else {}))

    def do_PUT(self) -> None:
        if self.begin():
            return
        place, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        first, last = map(int, place.split("-"))
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert len(data) == last - first + 1
        held = self.store.parts.get(self.sha256, b"")
        if first != len(held):
            self.answer(409, {"received": len(held)})
        elif len(held) + len(data) < int(total):
            self.store.parts[self.sha256] = held + data
            self.answer(202, {"received": len(held) + len(data)})
        elif hashlib.sha256(held + data).hexdigest() == self.sha256:
            self.store.whole[self.sha256] = held + data
            self.answer(201, {"sha256": self.sha256})
        else:
            self.store.parts.pop(self.sha256, None)
            self.answer(422)


def breaks(request: Handler) -> bool:
    """The connection breaks amid a request."""
    request.connection.shutdown(socket.SHUT_RDWR)
    request.close_connection = True
    return True


def fine(_: Handler) -> bool:
    return False


def busy(request: Handler) -> bool:
    request.close_connection = True
    body = {"code": "DRAINING", "retry_after": 0.01}
    return request.answer(503, body, Connection="close")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(resumable_upload, "PIECE", 256 * KIB)
    monkeypatch.setattr(resumable_upload, "LEAST_PIECE", 64 * KIB)
    monkeypatch.setattr(timeouts, "LONGEST_PAUSE_S", 0.01)


DATA = bytes(range(251)) * 4000  # 1,004,000 bytes: four pieces


def parcel(data: bytes = DATA) -> UploadBody:
    return replace(UploadBody.of_bytes(data), name="context")


async def test_many_who_begin_with_one_context_send_it_once_whatever_their_threads_are():
    heard: list[tuple[int, int]] = []

    def in_a_thread() -> None:
        asyncio.run(resumable_upload.upload([parcel()], store.access))

    with Store() as store:
        await asyncio.gather(
            *(
                resumable_upload.upload(
                    [parcel()], store.access, on_upload=lambda *far: heard.append(far)
                )
                for _ in range(8)
            ),
            *(asyncio.to_thread(in_a_thread) for _ in range(4)),
        )
        await resumable_upload.upload([parcel()], store.access)

    assert sum(each.startswith("PUT") for each in store.asked) == 4
    assert heard.count((len(DATA), len(DATA))) == 8


FORKED = """
import asyncio, os, signal, threading
from repl_env.client.upload.last_value_cache import LastValueCache
from repl_env.client.upload.single_flight import SingleFlight

single, latest, text = SingleFlight(), LastValueCache(), "one text"
begun, go = threading.Barrier(3), threading.Event()

async def slow():
    begun.wait()
    go.wait()

async def quick():
    pass

threading.Thread(target=lambda: asyncio.run(single.once("name", slow))).start()
threading.Thread(target=lambda: latest.of(text, lambda text: (begun.wait(), go.wait()))).start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    asyncio.run(single.once("name", quick))
    os._exit(latest.of(text, len))
go.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_amid_an_upload_waits_for_nobody():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout == "8\n"


async def test_who_waited_for_one_that_failed_tries_for_itself():
    def refuses(request: Handler) -> bool:
        return request.answer(413, {"code": "TOO_LARGE", "message": "no"})

    with Store(refuses) as store:
        ended = await asyncio.gather(
            *(resumable_upload.upload([parcel()], store.access) for _ in range(3)),
            return_exceptions=True,
        )
        first = asyncio.create_task(resumable_upload.upload([parcel(b"y" * 10)], store.access))
        other = asyncio.create_task(resumable_upload.upload([parcel(b"y" * 10)], store.access))
        await asyncio.sleep(0)
        first.cancel()
        await other

    assert [type(each) for each in ended] == [TooLarge, type(None), type(None)]
    assert len(store.whole) == 2


async def test_a_context_goes_in_pieces_and_says_how_far_it_is():
    told = []
    with Store() as store:
        await resumable_upload.upload(
            [parcel(), parcel(b"x" * 10)], store.access, on_upload=lambda *far: told.append(far)
        )

    assert store.whole == {
        each.sha256: each.open()(0, 1 << 30) for each in (parcel(), parcel(b"x" * 10))
    }
    assert store.asked[:3] == [
        "HEAD",
        "PUT bytes 0-262143/1004000",
        "PUT bytes 262144-524287/1004000",
    ]
    assert told[0] == (0, 1_004_010) and told[-1] == (1_004_010, 1_004_010)
    assert told == sorted(told) and (524_288, 1_004_010) in told
    assert all(each["Authorization"] == f"Bearer {KEY}" for each in store.headers)


async def test_what_is_there_is_not_sent():
    with Store() as store:
        store.whole[parcel().sha256] = DATA
        await resumable_upload.upload([parcel()], store.access)

    assert store.asked == ["HEAD"]


async def test_what_is_there_in_part_is_gone_on_with():
    with Store() as store:
        store.parts[parcel().sha256] = DATA[:900_000]
        await resumable_upload.upload([parcel()], store.access)

    assert store.asked == ["HEAD", "PUT bytes 900000-1003999/1004000"]
    assert store.whole == {parcel().sha256: DATA}


async def test_wrong_bytes_of_another_sender_are_made_good():
    with Store() as store:
        store.parts[parcel().sha256] = b"?" * 900_000
        await resumable_upload.upload([parcel()], store.access)

    assert store.asked[1] == "PUT bytes 900000-1003999/1004000"
    assert store.asked[2] == "PUT bytes 0-262143/1004000"
    assert store.whole == {parcel().sha256: DATA}


async def test_bytes_that_never_have_their_hash_are_sent_once():
    with Store() as store:
        with pytest.raises(ServerError, match="context has changed"):
            await resumable_upload.upload([replace(parcel(), sha256="0" * 64)], store.access)

    assert len(store.asked) == 5


@pytest.mark.parametrize("trouble", [breaks, busy], ids=["breaks", "busy"])
@pytest.mark.parametrize("place", range(5))
async def test_an_upload_goes_on_after_trouble(trouble, place):
    with Store(*[fine] * place, trouble) as store:
        await resumable_upload.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


async def test_a_piece_that_the_server_has_already_is_not_counted_twice():
    """The answer to a piece was lost: the server says where to go on."""

    def taken_and_lost(request: Handler) -> bool:
        data = request.rfile.read(int(request.headers["Content-Length"]))
        request.store.parts[request.sha256] = data
        return breaks(request)

    with Store(fine, taken_and_lost) as store:
        await resumable_upload.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


async def test_a_server_that_stays_away_is_given_up():
    with Store(*[busy] * 100) as store:
        with pytest.raises(ServerUnavailable):
            await resumable_upload.upload([parcel()], store.access)

    assert len(store.asked) == resumable_upload.MOST_ATTEMPTS


@pytest.mark.parametrize("seconds", [3600, 1e300])
async def test_a_server_that_wants_hours_is_not_waited_for(seconds):
    def later(request: Handler) -> bool:
        request.rfile.read(int(request.headers["Content-Length"]))
        return request.answer(503, {"code": "DRAINING", "retry_after": seconds})

    with Store(fine, later) as store:
        with pytest.raises(ServerUnavailable) as caught:
            await resumable_upload.upload([parcel()], store.access)

    assert caught.value.retry_after == seconds


async def test_pieces_that_never_arrive_are_given_up_and_become_smaller():
    def away(request: Handler) -> bool:
        return request.command == "PUT" and breaks(request)

    with Store(*[away] * 100) as store:
        with pytest.raises(ServerUnavailable, match="context"):
            await resumable_upload.upload([parcel()], store.access)

    assert store.asked[1] == "PUT bytes 0-262143/1004000"
    assert store.asked[-2] == "PUT bytes 0-65535/1004000"


async def test_a_server_that_goes_back_and_forth_is_given_up():
    def nothing_there(request: Handler) -> bool:
        if request.command == "PUT":
            request.rfile.read(int(request.headers["Content-Length"]))
        return request.command == "PUT" and request.answer(409, {"received": 0})

    with Store(*[nothing_there] * 100) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await resumable_upload.upload([parcel()], store.access)


async def test_a_server_that_goes_on_and_back_in_turn_is_given_up():
    counts = itertools.cycle([1000, 0])

    def forgetful(request: Handler) -> bool:
        if request.command == "PUT":
            request.rfile.read(int(request.headers["Content-Length"]))
        return request.command == "PUT" and request.answer(409, {"received": next(counts)})

    with Store(*[forgetful] * 100) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await resumable_upload.upload([parcel()], store.access)


async def test_a_context_of_which_all_bytes_came_is_not_taken_for_one_that_is_there():
    def all_came(request: Handler) -> bool:
        return request.answer(404, **{"Upload-Offset": str(len(DATA))})

    def there(request: Handler) -> bool:
        request.rfile.read(int(request.headers["Content-Length"]))
        return request.answer(200)

    with Store(all_came, there) as store:
        await resumable_upload.upload([parcel()], store.access)

    assert store.asked == ["HEAD", "PUT bytes 1003999-1003999/1004000"]


async def test_an_upload_that_the_server_forgot_is_made_again(monkeypatch):
    monkeypatch.setattr(resumable_upload, "MOST_ATTEMPTS", 2)

    def forgets(request: Handler) -> bool:
        request.store.parts.clear()
        return False

    with Store(*[fine] * 4, forgets) as store:
        await resumable_upload.upload([parcel()], store.access)

    assert list(store.whole.values()) == [DATA]


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
async def test_an_answer_that_does_not_end_is_a_server_that_is_not_there(answer):
    with Store(*[answer] * 20) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await resumable_upload.upload([parcel()], store.access)


def test_an_answer_that_comes_byte_by_byte_is_waited_for_no_longer_than_one_that_does_not(
    monkeypatch,
):
    hours, ended = itertools.count(step=3600), threading.Event()

    def trickling(request: Handler) -> bool:
        request.wfile.write(b"HTTP/1.1 200 ")
        while not ended.wait(0.001):
            request.wfile.write(b"O")
        return True

    monkeypatch.setattr(http_client, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    with Store(trickling) as store, HttpConnection(store.access, 1800.0) as connection:
        with pytest.raises(ServerUnavailable, match="it does not end"):
            connection.request("HEAD", "/contexts/x", None, {})
        ended.set()


async def test_an_answer_that_repeats_a_key_is_an_error_whose_traceback_has_it_not():
    def repeats(request: Handler) -> bool:
        request.close_connection = True
        return bool(request.wfile.write(f"{KEY} is no status\r\n\r\n".encode()))

    with Store(*[repeats] * 20) as store:
        with pytest.raises(ServerUnavailable, match=r"\[secret\]") as caught:
            await resumable_upload.upload([parcel()], store.access)

    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_pieces_have_a_limit_whatever_the_server_takes():
    with Store() as store:
        await resumable_upload.upload([parcel()], store.access, most_piece=1 << 40)

    assert store.asked[2] == "PUT bytes 262144-524287/1004000"


async def test_a_proxy_may_change_the_case_of_headers():
    def there_in_part(request: Handler) -> bool:
        return request.answer(404, **{"upload-offset": "262144"})

    with Store(there_in_part) as store:
        store.parts[parcel().sha256] = DATA[:262144]
        await resumable_upload.upload([parcel()], store.access)

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
            await resumable_upload.upload([parcel()], store.access)

    assert type(caught.value) is error
    assert KEY not in str(caught.value)


async def test_a_refusal_before_the_body_was_read_is_understood():
    def refuse(request: Handler) -> bool:
        request.close_connection = True
        return request.answer(413, {"code": "TOO_LARGE", "message": "at most 7 bytes"})

    with Store(fine, refuse) as store:
        with pytest.raises(ServerError):
            await resumable_upload.upload([parcel()], store.access)


async def test_a_redirect_is_not_followed():
    with (
        Store() as other,
        Store(lambda request: request.answer(307, Location=f"{other.access.address}")) as store,
    ):
        with pytest.raises(ServerError, match="REDIRECTED"):
            await resumable_upload.upload([parcel()], store.access)

    assert other.asked == []


async def test_a_file_that_changes_while_it_is_sent_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(DATA)
    changing = replace(UploadBody.of_file(file), name="context")

    def shorten(_: Handler) -> bool:
        file.write_bytes(b"")
        return False

    with Store(fine, shorten) as store:
        with pytest.raises(ServerError, match="context has changed"):
            await resumable_upload.upload([changing], store.access)


async def test_an_upload_that_is_given_up_closes_its_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = ServerAccess.of(f"http://127.0.0.1:{listener.getsockname()[1]}")
        sending = asyncio.create_task(resumable_upload.upload([UploadBody.of_text("x")], access))
        line, _ = await asyncio.to_thread(listener.accept)
        with line:
            line.settimeout(60)
            assert await asyncio.to_thread(line.recv, 4) == b"HEAD"
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            while await asyncio.to_thread(line.recv, 1 << 16):
                pass


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
def test_a_proxy_is_found_as_websockets_finds_it(monkeypatch, environment, secure, found):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(secure, "host", 443)

    assert (None if proxy is None else proxy.hostname) == found


async def test_a_context_goes_through_the_proxy(monkeypatch):
    with Store() as store:
        async with Proxy(store.port) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass%20word@"))
            await resumable_upload.upload(
                [parcel()], ServerAccess.of("http://elsewhere.invalid/base", KEY)
            )

    assert store.whole == {parcel().sha256: DATA}
    assert proxy.asked[0].startswith("CONNECT elsewhere.invalid:80")
    assert "Basic dXNlcjpwYXNzIHdvcmQ=" in proxy.asked[0]  # user:pass word
    assert KEY not in proxy.asked[0]
    assert all("Proxy-Authorization" not in each for each in store.headers)


async def test_a_context_goes_by_tls(tmp_path):
    with Store(tls=of_this_machine(tmp_path)) as store:
        await resumable_upload.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


@pytest.mark.parametrize("proxy", [f"socks5://user:{KEY}@host", f"http://user:{KEY}#1@host:80"])
def test_a_proxy_that_http_does_not_know_is_an_error_without_its_password(monkeypatch, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(NotSupported) as caught:
        proxy_for(True, "elsewhere", 443)

    assert KEY not in str(caught.value)


# ── which contexts those are ─────────────────────────────────────────────────────────────────────

TEXT, BYTES, VALUES = "é" * (LARGE // 2), b"\xff" * LARGE, ["word"] * (LARGE // 8)


@pytest.mark.parametrize(
    ("given", "kind", "data"),
    [
        (TEXT, "text", TEXT.encode()),
        (BYTES, "bytes", BYTES),
        (bytearray(BYTES), "bytes", BYTES),
        (VALUES, "json", json.dumps(VALUES).encode()),
    ],
)
async def test_a_large_context_is_uploaded(given, kind, data):
    sent, parcels = await ResetArguments(context=given).data(named=True)

    digest = hashlib.sha256(data).hexdigest()
    assert sent == {"uploads": {"context": {"sha256": digest, "type": kind}}}
    assert parcels[0].open()(0, 1 << 30) == data
    assert parcels[0].open()(5, 3) == data[5:8]


@pytest.mark.parametrize("given", [TEXT.encode(), BYTES, (TEXT + "é").encode()[:-1]])
async def test_a_large_file_is_uploaded_as_what_it_is(tmp_path, given):
    (tmp_path / "file").write_bytes(given)
    sent, parcels = await ResetArguments(contexts={"doc": tmp_path / "file"}).data(named=True)

    kind = "text" if given == TEXT.encode() else "bytes"
    digest = hashlib.sha256(given).hexdigest()
    assert sent == {"uploads": {"doc": {"sha256": digest, "type": kind}}}
    assert parcels[0].open()(7, 5) == given[7:12]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ""),
        ("a" * (LARGE - 1), "a" * (LARGE - 1)),
        ("\ud800" * LARGE, "\ud800" * LARGE),  # no UTF-8: JSON's escapes carry it
        (b"\x00", {"$bytes": "AA=="}),
        ([1, {"a": None}], [1, {"a": None}]),
    ],
)
async def test_a_small_context_goes_in_the_request(given, expected):
    sent, parcels = await ResetArguments(context=given).data(named=True)

    assert (sent, parcels) == ({"context": expected}, [])


async def test_small_and_large_ones_go_each_their_way(tmp_path):
    (tmp_path / "small").write_bytes(b"\xff")
    contexts = {"a": TEXT, "b": "short", "c": tmp_path / "small"}
    files = {"d/e.txt": "text", "f": b"\x00", "g": tmp_path / "small"}
    sent, parcels = await ResetArguments(contexts=contexts, files=files).data(named=True)

    assert sent["contexts"] == {"b": "short", "c": {"$bytes": "/w=="}}
    assert [*sent["uploads"]] == ["a"] == [each.name for each in parcels]
    assert sent["files"] == {"d/e.txt": "text", "f": {"$bytes": "AA=="}, "g": {"$bytes": "/w=="}}


async def test_a_large_file_of_an_episode_is_uploaded_once_for_all_its_paths(tmp_path):
    (tmp_path / "large").write_bytes(BYTES)
    files = {"a": tmp_path / "large", "b/c": BYTES, "d": TEXT, "e": "short"}
    sent, parcels = await ResetArguments(files=files).data(named=True)

    data, text = (hashlib.sha256(each).hexdigest() for each in (BYTES, TEXT.encode()))
    uploads = {"a": {"$upload": data}, "b/c": {"$upload": data}, "d": {"$upload": text}}
    assert sent == {"files": {**uploads, "e": "short"}}
    assert [each.sha256 for each in parcels] == [data, text]


async def test_a_path_that_is_no_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        await ResetArguments(context=tmp_path / "none").data(named=True)
    with pytest.raises(IsADirectoryError):
        await ResetArguments(files={"a": tmp_path}).data(named=True)


async def test_a_type_is_sent_as_its_schema():
    sent, _ = await ResetArguments(answer_schema=list[int]).data(named=True)

    assert sent == {"answer_schema": {"type": "array", "items": {"type": "integer"}}}


async def test_a_text_is_no_type_and_is_never_evaluated(tmp_path):
    proof = tmp_path / "evaluated"
    schema = f"__import__('pathlib').Path({str(proof)!r}).touch() or int"
    with pytest.raises(TypeError, match=r"answer_schema must be .*, not str"):
        await ResetArguments(answer_schema=schema).data(named=True)
    assert not proof.exists()


def test_clients_that_begin_with_one_context_at_a_time_hash_it_once():
    made, go = [], threading.Event()

    def make(text: str) -> UploadBody:
        go.wait(60)
        made.append(text)
        return UploadBody.of_text(text)

    text = "one text"
    with ThreadPoolExecutor(4) as pool:
        parcels = [pool.submit(LATEST.of, text, make) for _ in range(4)]
        go.set()
        assert len({each.result().sha256 for each in parcels}) == 1
    LATEST.of(text, make)
    assert made == [text]

    LATEST.forget(lambda parcel: parcel.sha256 == "of another")
    LATEST.of(text, make)
    assert made == [text]
    LATEST.forget(lambda parcel: parcel.sha256 == hashlib.sha256(b"one text").hexdigest())
    LATEST.of(text, make)
    assert made == [text] * 2


def test_what_cannot_be_hashed_is_an_error_for_all_who_wait():
    def fail(_: str) -> UploadBody:
        raise LookupError("no")

    for _ in range(2):
        with pytest.raises(LookupError):
            LATEST.of("no such text", fail)
