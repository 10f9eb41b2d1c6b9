"""A context of 100 MB, uploaded once and used by 32 sessions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from http.client import HTTPConnection
from time import perf_counter
from urllib.parse import urlsplit

from repl_sandbox import Sandbox

from ..figure import Figure
from ..samples import interleave
from ..work import TEXT_LINE
from .generator import run, socket
from .served import Server

SESSIONS = 32
_BYTES = 100_000_000
_DATA = (TEXT_LINE * (_BYTES // len(TEXT_LINE) + 1))[:_BYTES].encode()
_ROUNDS = 4
_LENGTH = "len(context)"


def contexts(server: Server) -> list[Figure]:
    """From the first byte of the upload to the last session's answer to `len(context)`."""
    name = hashlib.sha256(_DATA).hexdigest()

    def ours() -> float:
        seconds = run(_used(server, name))
        _request(server, "DELETE", name, b"", (200, 204))
        return seconds

    taken = interleave({"ours": ours, "floor": _in_process}, _ROUNDS, warm_up=1)
    return [
        Figure(
            "server_context",
            f"100 MB uploaded once and used by {SESSIONS} sessions",
            "ms",
            taken["ours"],
            taken["floor"],
            "hash, template and sessions in process",
        )
    ]


async def _used(server: Server, name: str) -> float:
    start = perf_counter()
    await asyncio.to_thread(_request, server, "PUT", name, _DATA, (201,))
    await asyncio.gather(*(_use(server, name) for _ in range(SESSIONS)))
    return perf_counter() - start


async def _use(server: Server, name: str) -> None:
    async with socket(server.url, "repl-env.v1") as connection:
        upload = {"sha256": name, "type": "text"}
        await connection.ask(_frame("open", {}))
        await connection.ask(_frame("reset", {"uploads": {"context": upload}}))
        seen = await connection.ask(_frame("step", {"code": _LENGTH}))
        _check(seen["observation"]["result"]["value"])
        connection.send(_frame("close", {}))


def _frame(kind: str, data: Mapping[str, object]) -> bytes:
    return json.dumps({"type": kind, "id": kind, "data": data}).encode()


def _request(
    server: Server, method: str, name: str, body: bytes, expected: tuple[int, ...]
) -> None:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request(method, f"/contexts/{name}", body=body)
    response = connection.getresponse()
    told = response.read()
    connection.close()
    if response.status not in expected:
        raise RuntimeError(f"{method} of a context came to {response.status}: {told[:200]!r}")


def _in_process() -> float:
    """The same by the engine alone: what the sessions share is made once, then each answers."""
    with Sandbox() as sandbox:
        start = perf_counter()
        hashlib.sha256(_DATA).hexdigest()
        with sandbox.with_shared(context=_DATA.decode()) as shared:
            sessions = [shared.session() for _ in range(SESSIONS)]
            for session in sessions:
                _check(session.run(_LENGTH).value)
            seconds = perf_counter() - start
            for session in sessions:
                session.close()
    return seconds


def _check(length: str | None) -> None:
    if length != str(_BYTES):
        raise RuntimeError(f"the context has {length} characters")
