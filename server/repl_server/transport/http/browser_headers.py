"""`BrowserHeaders`: ASGI middleware that adds security headers for browsers.

The headers forbid other sites to show a response in a frame (clickjacking), except sites that the
operator named, and forbid browsers to guess the type of a response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]

# A scheme and host source of CSP; contains no character that could end the directive.
_SITE = re.compile(r"https?://(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_NOBODY = "'none'"


class BrowserHeaders:
    """Adds `headers` to every response of `app`."""

    def __init__(self, app: ASGIApp, headers: Headers) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""

        async def send_headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        await self._app(scope, receive, send_headed if scope["type"] == "http" else send)


def page_headers(frame_ancestors: Sequence[str]) -> Headers:
    """The headers of a server whose responses these sites may show in frames.

    Raises:
        ValueError: a text is not a site such as https://example.org or https://*.example.org.
    """
    sites = [_site(each) for each in frame_ancestors]
    headers = [
        (b"content-security-policy", f"frame-ancestors {' '.join(sites or [_NOBODY])}".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if not sites:  # for browsers without CSP; this header cannot name a site
        headers.append((b"x-frame-options", b"DENY"))
    return headers


def _site(text: str) -> str:
    site = text.rstrip("/")
    if _SITE.fullmatch(site) is None:
        raise ValueError(
            f"frame_ancestors: {text!r} is not a site of web pages, such as https://example.org"
        )
    return site
