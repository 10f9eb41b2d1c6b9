"""Contexts by hash over HTTP: sent whole or in pieces, asked for, deleted; never another's."""

from __future__ import annotations

import errno
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from repl_server import file_routes, guard
from repl_server import uploads as spool
from repl_server.tenants import Tenant, TenantQuota
from repl_server.uploads import LEAST_BYTES
from tests.manual_clock import Clock
from tests.server.conftest import serving
from tests.server.server_internals import set_upload_clock
from tests.server.uploads.upload_data import MIB, content, memory_files, name
from tests.waiting import PATIENCE, eventually

# Room for three of the largest, one tenant may have two.
LIMITS = {
    "context_bytes": 4 * MIB,
    "uploads_bytes": 12 * MIB,
    "quota": TenantQuota(uploaded_bytes=8 * MIB),
}
# By addresses: each of these is a tenant.
ME, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def server():
    with serving(LIMITS) as server:
        yield server


@pytest.fixture(autouse=True)
def lingering(monkeypatch) -> None:
    """Give a refused client longer to finish sending than this process may stall."""
    for module in (guard, file_routes):
        monkeypatch.setattr(module, "LINGER_S", 60.0)


@pytest.fixture(autouse=True)
def nothing_is_left(server) -> Iterator[None]:
    before = memory_files()
    yield
    uploads = server.manager.uploads
    server.loop.call_soon_threadsafe(uploads.close)
    eventually(lambda: uploads.quota.used == 0 and memory_files() <= before)


@pytest.fixture
def clock(server, monkeypatch) -> Clock:
    """The clock of the server's uploads, which the test advances: no sender is late by accident."""
    clock = Clock()
    set_upload_clock(monkeypatch, server.manager, clock)
    return clock


@contextmanager
def connection(server, source: str = ME) -> Iterator[http.client.HTTPConnection]:
    line = http.client.HTTPConnection(ME, server.port, timeout=PATIENCE, source_address=(source, 0))
    try:
        yield line
    finally:
        line.close()


def answer(line: http.client.HTTPConnection) -> tuple[int, Any]:
    response = line.getresponse()
    text = response.read()
    return response.status, json.loads(text) if text else {}


def ask(server, method: str, sha: str, body: Any = None, source: str = ME, **headers: Any):
    """One request: the status, and the body merged with the headers."""
    named = {key.replace("_", "-"): str(value) for key, value in headers.items()}
    with connection(server, source) as line:
        line.request(method, f"/contexts/{sha}", body=body, headers=named)
        response = line.getresponse()
        text = response.read()
        return response.status, {
            **(json.loads(text) if text else {}),
            **dict(response.getheaders()),
        }


def span(first: int, last: int, total: int) -> dict[str, str]:
    return {"Content_Range": f"bytes {first}-{last}/{total}"}


def put_pieces(server, data: bytes, size: int, source: str = ME) -> Any:
    """The status of the last of its pieces."""
    for first in range(0, len(data), size):
        piece = data[first : first + size]
        last = first + len(piece) - 1
        status, told = ask(server, "PUT", name(data), piece, source, **span(first, last, len(data)))
        if last < len(data) - 1:
            assert (status, told["received"], told["upload-offset"]) == (
                202,
                last + 1,
                f"{last + 1}",
            )
    return status


def stored(server, data: bytes, source: str = ME) -> bool:
    """Whether the server has exactly this."""
    status, _ = ask(server, "HEAD", name(data), source=source)
    found = server.manager.uploads.find(Tenant("address", source), name(data))
    whole = found is not None and found.complete
    assert (status == 200) == whole
    return whole and found.content.read() == data


# ── what comes in ────────────────────────────────────────────────────────────────────────────────

SIZES = (0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 7)


@pytest.mark.parametrize("size", SIZES)
def test_a_context_is_sent_asked_for_and_deleted(server, size: int) -> None:
    data = content(size)

    assert ask(server, "HEAD", name(data))[0] == 404
    status, told = ask(server, "PUT", name(data), data)
    assert (status, told["sha256"], told["bytes"]) == (201, name(data), size)
    assert stored(server, data)
    status, told = ask(server, "PUT", name(data), data)
    assert (status, told["bytes"]) == (200, size)
    assert ask(server, "DELETE", name(data))[0] == 204
    assert ask(server, "HEAD", name(data))[0] == 404
    status, told = ask(server, "DELETE", name(data))
    assert (status, told["code"]) == (404, "UNKNOWN_CONTEXT")


@pytest.mark.parametrize("size", SIZES)
def test_a_body_without_a_length_is_accepted(server, size: int) -> None:
    data = content(size)

    pieces = (data[at : at + 100_000] for at in range(0, size, 100_000))
    assert ask(server, "PUT", name(data), pieces)[0] == 201  # chunked
    assert stored(server, data)


@pytest.mark.parametrize("size", [1, 70_000, MIB, 3 * MIB])
def test_a_context_may_arrive_in_pieces_of_any_size(server, size: int) -> None:
    data = content(min(2 * MIB + 5, 9 * size + 1))

    assert put_pieces(server, data, size) == 201
    assert stored(server, data)
    assert ask(server, "PUT", name(data), b"x", **span(0, 0, 9))[0] == 200


def test_a_piece_at_a_wrong_offset_is_answered_with_the_expected_one(server) -> None:
    data = content(100)
    sha = name(data)

    status, told = ask(server, "PUT", sha, data[1:], **span(1, 99, 100))
    assert (status, told["code"], told["received"]) == (409, "OUT_OF_ORDER", 0)
    assert ask(server, "PUT", sha, data[:40], **span(0, 39, 100))[0] == 202
    for first in (0, 39, 41, 99):
        status, told = ask(server, "PUT", sha, data[first:], **span(first, 99, 100))
        assert (status, told["received"], told["upload-offset"]) == (409, 40, "40")
    assert ask(server, "HEAD", sha)[1]["upload-offset"] == "40"
    assert ask(server, "PUT", sha, data[40:], **span(40, 99, 100))[0] == 201


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_a_wrong_hash_discards_the_upload(server, size: int) -> None:
    data, sha = content(size), name(b"another")

    status, told = ask(server, "PUT", sha, data)
    assert (status, told["code"]) == (422, "VALIDATION_ERROR")
    half = size // 2
    assert ask(server, "PUT", sha, data[:half], **span(0, half - 1, size))[0] == 202
    assert ask(server, "PUT", sha, data[half:], **span(half, size - 1, size))[0] == 422
    status, told = ask(server, "HEAD", sha)
    assert status == 404 and "upload-offset" not in told
    assert server.manager.uploads.quota.used == 0


# ── lies ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given",
    [
        "bytes",
        "bytes 0-9",
        "bytes 0-9/*",
        "bytes */10",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes -1-9/10",
        "bytes 0-9/10, bytes 0-9/10",
        "items 0-9/10",
        "bytes 0-9999999999999999/99999999999999999",
        "bytes ٠-٩/10".encode().decode("latin-1"),
    ],
)
def test_an_invalid_range_is_refused(server, given: str) -> None:
    status, told = ask(server, "PUT", name(b"x"), content(10), Content_Range=given)
    assert (status, told["code"]) == (422, "VALIDATION_ERROR")


def test_a_body_of_another_length_than_its_range_is_refused(server) -> None:
    data = content(3 * MIB)
    sha, total = name(data), len(data)
    ask(server, "PUT", sha, data[:MIB], **span(0, MIB - 1, total))

    for body in (data[MIB:], data[MIB : MIB + 10], b""):
        status, told = ask(server, "PUT", sha, body, **span(MIB, 2 * MIB, total))
        assert (status, told["code"]) == (422, "VALIDATION_ERROR")
    status, told = ask(server, "PUT", sha, iter([data[MIB:]]), **span(MIB, MIB + 9, total))
    assert (status, told["message"]) == (422, "the body has more bytes than announced")
    assert ask(server, "HEAD", sha)[1]["upload-offset"] == str(MIB)
    for last, all_of_it in ((total - 1, total + 1), (2 * MIB - 1, total + 1)):
        given = span(MIB, last, all_of_it)
        status, told = ask(server, "PUT", sha, data[MIB : last + 1], **given)
        assert (status, told["message"]) == (422, f"the context has {total} bytes, not {total + 1}")
    assert ask(server, "PUT", sha, data[MIB:], **span(MIB, total - 1, total))[0] == 201
    assert stored(server, data)


def test_a_chunked_piece_that_ends_early_keeps_its_received_bytes(server) -> None:
    data = content(100)
    sha = name(data)

    status, told = ask(server, "PUT", sha, iter([data[:40]]), **span(0, 79, 100))
    assert (status, told["received"]) == (202, 40)
    assert ask(server, "PUT", sha, iter([data[40:]]), **span(40, 99, 100))[0] == 201


@pytest.mark.parametrize("sha", ["x", "A" * 64, "0" * 63, "0" * 65, "%00" * 64, "é" * 32])
def test_an_invalid_hash_is_refused(server, sha: str) -> None:
    quoted = "".join(each if each.isascii() else "%C3%A9" for each in sha)
    for method in ("PUT", "HEAD", "DELETE"):
        assert ask(server, method, quoted, b"x" if method == "PUT" else None)[0] == 422


def test_a_compressed_body_is_refused(server) -> None:
    assert ask(server, "PUT", name(b"x"), b"x", Content_Encoding="gzip")[0] == 422
    assert ask(server, "PUT", name(b"x"), b"x", Content_Encoding="identity")[0] == 201


# ── senders who go away, or come together ────────────────────────────────────────────────────────


def begin(server, line, sha: str, body: bytes, length: int, **headers: Any) -> None:
    """Send the head of a request that announces `length` bytes, and the first of them."""
    line.putrequest("PUT", f"/contexts/{sha}")
    line.putheader("Content-Length", str(length))
    for key, value in headers.items():
        line.putheader(key.replace("_", "-"), value)
    line.endheaders(body)


@pytest.mark.parametrize("whole", [False, True], ids=["a piece", "a whole context"])
@pytest.mark.parametrize("cut", [1, MIB - 1, 2 * MIB + 7])
def test_an_upload_continues_where_the_connection_was_cut(server, cut: int, whole: bool) -> None:
    data = content(3 * MIB)
    sha, total = name(data), len(data)

    with connection(server) as line:
        begin(server, line, sha, data[:cut], total, **({} if whole else span(0, total - 1, total)))
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == str(cut))
    assert ask(server, "PUT", sha, data[cut:], **span(cut, total - 1, total))[0] == 201
    assert stored(server, data)
    assert server.manager.uploads.quota.used == total


def test_a_chunked_context_that_was_cut_continues_too(server) -> None:
    data = content(100)
    sha = name(data)

    with connection(server) as line:
        line.putrequest("PUT", f"/contexts/{sha}")
        line.putheader("Transfer-Encoding", "chunked")
        line.endheaders(b"28\r\n" + data[:40] + b"\r\n")  # and no end
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == "40")
    assert ask(server, "PUT", sha, data[40:], **span(40, 99, 100))[0] == 201


def test_a_context_is_complete_with_its_last_byte_though_the_request_never_ends(server) -> None:
    data = content(100)
    sha = name(data)

    with connection(server) as line:
        line.putrequest("PUT", f"/contexts/{sha}")
        line.putheader("Transfer-Encoding", "chunked")
        line.putheader("Content-Range", "bytes 0-99/100")
        line.endheaders(b"64\r\n" + data + b"\r\n")  # and no end
        eventually(lambda: ask(server, "HEAD", sha)[0] == 200)
    assert stored(server, data)


def test_a_context_sent_again_from_the_start_begins_again(server) -> None:
    data, sha = content(3 * MIB), name(content(3 * MIB))
    ask(server, "PUT", sha, content(MIB, 1), **span(0, MIB - 1, 2 * MIB))  # not the expected value

    assert ask(server, "PUT", sha, data)[0] == 201
    assert stored(server, data)
    assert server.manager.uploads.quota.used == len(data)


def test_nothing_is_kept_of_a_request_that_sent_nothing(server) -> None:
    sha = name(b"x")

    with connection(server) as line:
        begin(server, line, sha, b"", 3 * MIB, **span(0, 3 * MIB - 1, 3 * MIB))
        eventually(lambda: server.manager.uploads.quota.used == LEAST_BYTES)
    eventually(lambda: server.manager.uploads.quota.used == 0)
    assert server.manager.uploads.find(Tenant("address", ME), sha) is None


def test_two_senders_of_one_context_both_succeed_and_it_is_stored_once(server, clock) -> None:
    data = content(3 * MIB)

    with connection(server) as first, connection(server) as second:
        begin(server, first, name(data), data[:MIB], len(data))
        eventually(lambda: server.manager.uploads.quota.used == MIB)
        begin(server, second, name(data), data[:MIB], len(data))
        first.send(data[MIB:])
        assert answer(first)[0] == 201
        second.send(data[MIB:])
        assert answer(second)[0] == 200
    assert stored(server, data)
    assert server.manager.uploads.quota.used == 3 * MIB


@pytest.mark.parametrize("whole", [False, True], ids=["a piece", "a whole context"])
def test_a_returning_client_replaces_its_dead_connection(server, clock, whole: bool) -> None:
    """A connection can be dead for minutes before the server detects it."""
    data = content(3 * MIB)
    sha, total = name(data), len(data)

    with connection(server) as dead:
        begin(server, dead, sha, data[:MIB], total, **span(0, total - 1, total))
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == str(MIB))
        clock.now += 1
        rest = {} if whole else span(MIB, total - 1, total)
        assert ask(server, "PUT", sha, data if whole else data[MIB:], **rest)[0] == 201
        dead.send(data[MIB:])
        assert answer(dead)[0] == (404 if whole else 409)
    assert stored(server, data)


def test_two_senders_of_the_same_pieces_alternate(server, clock) -> None:
    data = content(3 * MIB)
    sha, piece = name(data), span(0, 2 * MIB - 1, len(data))

    with connection(server) as first, connection(server) as second:
        begin(server, first, sha, data[:MIB], 2 * MIB, **piece)
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == str(MIB))
        begin(server, second, sha, data[:MIB], 2 * MIB, **piece)
        first.send(data[MIB : 2 * MIB])
        assert answer(first)[0] == 202
        second.send(data[MIB : 2 * MIB])
        clock.now += 1  # the next byte is overdue, and nothing is forgotten yet
        status, told = answer(second)
        assert (status, told["received"]) == (409, 2 * MIB)
    rest = span(2 * MIB, len(data) - 1, len(data))
    assert ask(server, "PUT", sha, data[2 * MIB :], **rest)[0] == 201
    assert stored(server, data)


def test_a_later_sender_waits_for_the_earlier_one_and_sends_nothing(server, clock) -> None:
    data = content(3 * MIB)
    sha, first = name(data), span(0, 2 * MIB - 1, len(data))

    with connection(server) as ahead, connection(server) as behind, connection(server) as whole:
        begin(server, ahead, sha, data[:MIB], 2 * MIB, **first)
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == str(MIB))
        begin(server, behind, sha, data[: 2 * MIB], 2 * MIB, **first)
        ahead.send(data[MIB : 2 * MIB])
        assert answer(ahead)[0] == 202
        rest = span(2 * MIB, len(data) - 1, len(data))
        begin(server, ahead, sha, data[2 * MIB :], MIB, **rest)
        assert answer(ahead)[0] == 201
        assert answer(behind)[0] == 200
        begin(server, whole, sha, data, len(data))
        assert answer(whole)[0] == 200
    assert server.manager.uploads.quota.used == 3 * MIB


def test_the_body_of_a_known_context_is_skipped_and_the_connection_goes_on(server) -> None:
    data = content(3 * MIB)
    ask(server, "PUT", name(data), data)

    with connection(server) as line:
        for headers in ({}, span(0, len(data) - 1, len(data))):
            begin(server, line, name(data), b"", len(data), **headers)
            line.send(data)
            assert answer(line)[0] == 200
        line.request("HEAD", f"/contexts/{name(data)}")
        assert answer(line)[0] == 200


def test_expect_100_continue_is_answered_only_when_the_body_is_needed(server) -> None:
    data = content(3 * MIB)
    expecting = {"Expect": "100-continue"}

    with connection(server) as line:
        begin(server, line, name(data), b"", len(data), **expecting)
        assert line.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        line.send(data)
        assert answer(line)[0] == 201
    for sha, headers, status in (
        (name(data), {}, 200),
        (name(b"x"), {"Content_Range": "bytes 5-9/10"}, 409),
        (name(b"x"), {"Content_Range": "none"}, 422),
    ):
        with connection(server) as line:
            begin(server, line, sha, b"", 5, **expecting, **headers)
            response = line.getresponse()
            assert (response.status, response.getheader("Connection")) == (status, "close")
            response.read()


def test_deleting_ends_a_running_upload(server) -> None:
    data = content(3 * MIB)
    sha = name(data)

    with connection(server) as line:
        begin(server, line, sha, data[: 2 * MIB], len(data), **span(0, len(data) - 1, len(data)))
        eventually(lambda: ask(server, "HEAD", sha)[1].get("upload-offset") == str(2 * MIB))
        assert ask(server, "DELETE", sha)[0] == 204
        assert "upload-offset" not in ask(server, "HEAD", sha)[1]
        line.send(data[2 * MIB :])
        status, told = answer(line)
        assert (status, told["code"]) == (404, "UNKNOWN_CONTEXT")


# ── whose, and how much ──────────────────────────────────────────────────────────────────────────


def test_a_hash_reveals_nothing_about_other_tenants(server) -> None:
    data = content(2 * MIB)
    ask(server, "PUT", name(data), data)
    ask(server, "PUT", name(b"half"), b"h", **span(0, 0, 4))

    for sha in (name(data), name(b"half")):
        status, told = ask(server, "HEAD", sha, source=OTHER)
        assert status == 404 and "upload-offset" not in told
        assert ask(server, "DELETE", sha, source=OTHER)[0] == 404
    status, told = ask(server, "PUT", name(b"half"), b"f", OTHER, **span(3, 3, 4))
    assert (status, told["received"]) == (409, 0)
    assert ask(server, "PUT", name(data), data, OTHER)[0] == 201
    assert ask(server, "DELETE", name(data), source=OTHER)[0] == 204
    assert stored(server, data)


def test_a_context_over_the_limit_is_refused_with_an_answer(server) -> None:
    total = 4 * MIB + 1
    for headers in ({}, span(0, 9, total)):
        with connection(server) as line:
            length = 10 if headers else total
            begin(server, line, name(b"x"), bytes(length), length, **headers)
            status, told = answer(line)
        assert (status, told["code"], told["limit"]) == (413, "TOO_LARGE", 4 * MIB)
    status, told = ask(server, "PUT", name(b"x"), (bytes(MIB) for _ in range(5)))
    assert (status, told["code"]) == (413, "TOO_LARGE")


def test_a_tenant_s_oldest_upload_is_evicted_at_its_quota(server) -> None:
    first, second, third = (content(4 * MIB, seed) for seed in range(3))
    for data in (first, second):
        ask(server, "PUT", name(data), data)
    ask(server, "PUT", name(first), first)  # which uses it

    assert ask(server, "PUT", name(third), third)[0] == 201
    assert [stored(server, each) for each in (first, second, third)] == [True, False, True]


def test_arriving_uploads_do_not_evict_each_other(server) -> None:
    parts = [content(4 * MIB, seed) for seed in range(3)]
    with connection(server) as first, connection(server) as second:
        for line, data in ((first, parts[0]), (second, parts[1])):
            begin(server, line, name(data), data[: 3 * MIB], len(data))
        eventually(lambda: server.manager.uploads.quota.used == 6 * MIB)
        status, told = ask(server, "PUT", name(parts[2]), parts[2])
        assert (status, told["code"]) == (429, "QUOTA_EXCEEDED")
        # Another tenant has another quota; the total memory is the limit there.
        with connection(server, OTHER) as third:
            begin(server, third, name(parts[2]), parts[2][: 3 * MIB], len(parts[2]))
            eventually(lambda: server.manager.uploads.quota.used == 9 * MIB)
            status, told = ask(server, "PUT", name(parts[1]), parts[1], "127.0.0.3")
            assert (status, told["code"]) == (507, "NO_ROOM")
        for line, data in ((first, parts[0]), (second, parts[1])):
            line.send(data[3 * MIB :])
            assert answer(line)[0] == 201


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.ENOMEM, errno.EMFILE])
def test_a_full_system_refuses_uploads_and_accepts_them_later(
    server, monkeypatch, error: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(error, os.strerror(error))

    data, before = content(2 * MIB), memory_files()
    with monkeypatch.context() as patched:
        patched.setattr(spool, "_write" if error != errno.EMFILE else "_file", full)
        status, told = ask(server, "PUT", name(data), data)
        assert (status, told["code"]) == (507, "NO_ROOM")
        assert os.strerror(error) in told["message"]
    assert server.manager.uploads.quota.used == 0 and memory_files() <= before
    assert ask(server, "PUT", name(data), data)[0] == 201
