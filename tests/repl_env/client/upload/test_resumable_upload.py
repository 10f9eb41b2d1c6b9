"""Uploads in pieces: resumed, repeated and given up."""

from __future__ import annotations

import asyncio
import itertools
import socket
from dataclasses import replace

import pytest

from repl_env.client import uploads
from repl_env.client.address import ServerAccess
from repl_env.client.requests import UploadBody
from repl_env.errors import ServerError, ServerUnavailable
from tests.repl_env.client.upload.upload_server import (
    DATA,
    KEY,
    Handler,
    Store,
    breaks,
    busy,
    fine,
    parcel,
)


async def test_a_context_is_sent_in_pieces_with_progress():
    told = []
    with Store() as store:
        await uploads.upload(
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


async def test_an_uploaded_context_is_not_sent_again():
    with Store() as store:
        store.whole[parcel().sha256] = DATA
        await uploads.upload([parcel()], store.access)

    assert store.asked == ["HEAD"]


async def test_a_partly_uploaded_context_is_continued():
    with Store() as store:
        store.parts[parcel().sha256] = DATA[:900_000]
        await uploads.upload([parcel()], store.access)

    assert store.asked == ["HEAD", "PUT bytes 900000-1003999/1004000"]
    assert store.whole == {parcel().sha256: DATA}


async def test_wrong_bytes_of_another_sender_are_replaced():
    with Store() as store:
        store.parts[parcel().sha256] = b"?" * 900_000
        await uploads.upload([parcel()], store.access)

    assert store.asked[1] == "PUT bytes 900000-1003999/1004000"
    assert store.asked[2] == "PUT bytes 0-262143/1004000"
    assert store.whole == {parcel().sha256: DATA}


async def test_a_context_whose_hash_never_matches_is_sent_once():
    with Store() as store:
        with pytest.raises(ServerError, match="context has changed"):
            await uploads.upload([replace(parcel(), sha256="0" * 64)], store.access)

    assert len(store.asked) == 5


@pytest.mark.parametrize("trouble", [breaks, busy], ids=["breaks", "busy"])
@pytest.mark.parametrize("place", range(5))
async def test_an_upload_goes_on_after_an_error(trouble, place):
    with Store(*[fine] * place, trouble) as store:
        await uploads.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


async def test_a_piece_that_the_server_has_already_is_not_counted_twice():
    """The answer to a piece was lost: the server says where to go on."""

    def taken_and_lost(request: Handler) -> bool:
        data = request.rfile.read(int(request.headers["Content-Length"]))
        request.store.parts[request.sha256] = data
        return breaks(request)

    with Store(fine, taken_and_lost) as store:
        await uploads.upload([parcel()], store.access)

    assert store.whole == {parcel().sha256: DATA}


async def test_a_server_that_stays_away_is_an_error():
    with Store(*[busy] * 100) as store:
        with pytest.raises(ServerUnavailable):
            await uploads.upload([parcel()], store.access)

    assert len(store.asked) == uploads.MAX_ATTEMPTS


@pytest.mark.parametrize("seconds", [3600, 1e300])
async def test_a_retry_after_of_hours_is_an_error(seconds):
    def later(request: Handler) -> bool:
        request.rfile.read(int(request.headers["Content-Length"]))
        return request.answer(503, {"code": "DRAINING", "retry_after": seconds})

    with Store(fine, later) as store:
        with pytest.raises(ServerUnavailable) as caught:
            await uploads.upload([parcel()], store.access)

    assert caught.value.retry_after == seconds


async def test_pieces_that_never_arrive_become_smaller_until_an_error():
    def away(request: Handler) -> bool:
        return request.command == "PUT" and breaks(request)

    with Store(*[away] * 100) as store:
        with pytest.raises(ServerUnavailable, match="context"):
            await uploads.upload([parcel()], store.access)

    assert store.asked[1] == "PUT bytes 0-262143/1004000"
    assert store.asked[-2] == "PUT bytes 0-65535/1004000"


async def test_a_server_whose_offset_jumps_back_is_an_error():
    def nothing_there(request: Handler) -> bool:
        if request.command == "PUT":
            request.rfile.read(int(request.headers["Content-Length"]))
        return request.command == "PUT" and request.answer(409, {"received": 0})

    with Store(*[nothing_there] * 100) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await uploads.upload([parcel()], store.access)


async def test_a_server_whose_offset_alternates_is_an_error():
    counts = itertools.cycle([1000, 0])

    def forgetful(request: Handler) -> bool:
        if request.command == "PUT":
            request.rfile.read(int(request.headers["Content-Length"]))
        return request.command == "PUT" and request.answer(409, {"received": next(counts)})

    with Store(*[forgetful] * 100) as store:
        with pytest.raises(ServerUnavailable, match="do not arrive"):
            await uploads.upload([parcel()], store.access)


async def test_a_context_of_received_but_unconfirmed_bytes_is_not_taken_as_uploaded():
    def all_came(request: Handler) -> bool:
        return request.answer(404, **{"Upload-Offset": str(len(DATA))})

    def there(request: Handler) -> bool:
        request.rfile.read(int(request.headers["Content-Length"]))
        return request.answer(200)

    with Store(all_came, there) as store:
        await uploads.upload([parcel()], store.access)

    assert store.asked == ["HEAD", "PUT bytes 1003999-1003999/1004000"]


async def test_an_upload_that_the_server_dropped_is_repeated(monkeypatch):
    monkeypatch.setattr(uploads, "MAX_ATTEMPTS", 2)

    def forgets(request: Handler) -> bool:
        request.store.parts.clear()
        return False

    with Store(*[fine] * 4, forgets) as store:
        await uploads.upload([parcel()], store.access)

    assert list(store.whole.values()) == [DATA]


async def test_a_file_that_changes_while_it_is_sent_is_an_error(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(DATA)
    changing = replace(UploadBody.of_file(file), name="context")

    def shorten(_: Handler) -> bool:
        file.write_bytes(b"")
        return False

    with Store(fine, shorten) as store:
        with pytest.raises(ServerError, match="context has changed"):
            await uploads.upload([changing], store.access)


async def test_an_aborted_upload_closes_its_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = ServerAccess.of(f"http://127.0.0.1:{listener.getsockname()[1]}")
        sending = asyncio.create_task(uploads.upload([UploadBody.of_text("x")], access))
        line, _ = await asyncio.to_thread(listener.accept)
        with line:
            line.settimeout(60)
            assert await asyncio.to_thread(line.recv, 4) == b"HEAD"
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            while await asyncio.to_thread(line.recv, 1 << 16):
                pass
