"""`StrictJSONRoute`: a route whose JSON body is parsed like a WebSocket frame."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from ...protocol.json_codec import JSONCodec
from ...protocol.validation import read_object, validation_error
from ...tenants.tenant import tenant_of


class StrictJSONRoute(APIRoute):
    """A route that parses its body as strictly as a frame, and without blocking others."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As in the base, with the body parsed first."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            body = await request.body()
            if body:
                _check_kind(request.headers.get("Content-Type", ""))
                reading: JSONCodec = request.app.state.manager.json_codec
                tenant = tenant_of(request.scope)
                request._json = await reading.read(body, read_object, tenant)
            return await handle(request)

        return strictly


def _check_kind(kind: str) -> None:
    """Reject a body that is not declared as JSON: HTML forms, and curl's default type."""
    name = kind.partition(";")[0].strip().lower()
    main, _, sub = name.partition("/")
    if kind and not (main == "application" and (sub == "json" or sub.endswith("+json"))):
        raise validation_error("header.Content-Type", f"must be application/json, not {name[:100]}")
