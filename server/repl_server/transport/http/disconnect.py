"""Work for a client over HTTP that ends when the client leaves, and not when it is done.

A server is not told of that: the answer would go nowhere, and who takes the room of a session, or
opens one whose name nobody would learn, would keep it from others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request as HTTPRequest
from starlette.requests import ClientDisconnect

T = TypeVar("T")


async def run_until_disconnect(request: HTTPRequest, work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to.

    Raises:
        ClientDisconnect: the client has left, and `work` was cancelled.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(request))
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


async def _left(request: HTTPRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
