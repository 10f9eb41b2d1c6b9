"""Cancel the work for an HTTP request when its client disconnects.

An ASGI server does not cancel it. The response would go nowhere, and the request would occupy a
session, or open one whose token nobody learns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request as HTTPRequest
from starlette.requests import ClientDisconnect

T = TypeVar("T")


async def run_until_disconnect(request: HTTPRequest, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


async def _disconnected(request: HTTPRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
