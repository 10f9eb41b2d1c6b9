"""`BrowserHeaders`: headers of each answer that browsers obey, as bare ASGI.

No page of another site may show an answer in a frame, where its visitor could be led to press
buttons, unless the operator named that site. No browser may take an answer for a type other than
its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]

# A scheme and a host of CSP: nothing in it can end the directive.
_SITE = re.compile(r"https?://(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_NOBODY = "'none'"


class BrowserHeaders:
    """Adds `headers` to every answer of `app`."""

    def __init__(self, app: ASGIApp, headers: Headers) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def send_headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        await self._app(scope, receive, send_headed if scope["type"] == "http" else send)


def page_headers(frame_ancestors: Sequence[str]) -> Headers:
    """The headers of a server whose answers pages of these sites may show in frames.

    Raises:
        ValueError: one of them is no site such as https://example.org or https://*.example.org.
    """
    sites = [_site(each) for each in frame_ancestors]
    headers = [
        (b"content-security-policy", f"frame-ancestors {' '.join(sites or [_NOBODY])}".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if not sites:  # for browsers older than the policy; it cannot name a site
        headers.append((b"x-frame-options", b"DENY"))
    return headers


def _site(text: str) -> str:
    site = text.rstrip("/")
    if _SITE.fullmatch(site) is None:
        raise ValueError(f"{text!r} is no site of web pages, such as https://example.org")
    return site
