"""Uploads of one context by several threads and processes."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from repl_env.client import uploads
from repl_env.client.requests import LATEST, UploadBody
from repl_env.errors import TooLarge
from tests.repl_env.client.upload.upload_server import DATA, Handler, Store, parcel


async def test_concurrent_uploads_of_one_context_send_it_once():
    heard: list[tuple[int, int]] = []

    def in_a_thread() -> None:
        asyncio.run(uploads.upload([parcel()], store.access))

    with Store() as store:
        await asyncio.gather(
            *(
                uploads.upload([parcel()], store.access, on_upload=lambda *far: heard.append(far))
                for _ in range(8)
            ),
            *(asyncio.to_thread(in_a_thread) for _ in range(4)),
        )
        await uploads.upload([parcel()], store.access)

    assert sum(each.startswith("PUT") for each in store.asked) == 4
    assert heard.count((len(DATA), len(DATA))) == 8


FORKED = """
import asyncio, os, signal, threading
from repl_env.client.requests import LastValueCache
from repl_env.client.uploads import SingleFlight

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


def test_a_process_forked_during_an_upload_does_not_wait():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout == "8\n"


async def test_a_waiting_upload_retries_after_the_first_one_failed():
    def refuses(request: Handler) -> bool:
        return request.answer(413, {"code": "TOO_LARGE", "message": "no"})

    with Store(refuses) as store:
        ended = await asyncio.gather(
            *(uploads.upload([parcel()], store.access) for _ in range(3)),
            return_exceptions=True,
        )
        first = asyncio.create_task(uploads.upload([parcel(b"y" * 10)], store.access))
        other = asyncio.create_task(uploads.upload([parcel(b"y" * 10)], store.access))
        await asyncio.sleep(0)
        first.cancel()
        await other

    assert [type(each) for each in ended] == [TooLarge, type(None), type(None)]
    assert len(store.whole) == 2


def test_concurrent_clients_hash_one_context_once():
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


def test_a_value_that_cannot_be_hashed_is_an_error_for_all_waiting_uploads():
    def fail(_: str) -> UploadBody:
        raise LookupError("no")

    for _ in range(2):
        with pytest.raises(LookupError):
            LATEST.of("no such text", fail)
