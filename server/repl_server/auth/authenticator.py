"""`Authenticator`: the tenant of a request, by API key or address."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..protocol.request_error import RequestError
from ..settings import Settings
from ..tenants.client_address import client_network, is_loopback
from ..tenants.tenant import Tenant
from .allowed_origins import AllowedOrigins, needs_no_host
from .api_keys import APIKeys
from .trusted_proxies import TrustedProxies


class Authenticator:
    """Authenticates requests.

    A server requires keys if it has any, or listens beyond loopback, unless `Settings.no_auth` is
    set. With `no_auth`, a request may still present a key and acts as its tenant.

    Raises:
        ValueError: keys are required and none exist; `metrics_key` names no key; an origin or a
            proxy is invalid.
    """

    def __init__(self, settings: Settings, keys: APIKeys) -> None:
        loopback = is_loopback(settings.host)
        self._keys = keys
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.origins = AllowedOrigins(settings.origins, loopback=loopback)
        given = settings.api_keys is not None or bool(settings.hashed_keys) or bool(keys)
        self.requires_keys = not settings.no_auth and (given or not loopback)
        if settings.metrics_key is not None and settings.metrics_key not in keys:
            raise ValueError(f"metrics_key: no key has the name {settings.metrics_key!r}")
        if self.requires_keys and not keys:
            raise ValueError(
                f"host: without keys, every client that reaches {settings.host!r} could run code:"
                " create a key with `repl-env keys NAME --file FILE` and set api_keys to that file,"
                " or set no_auth"
            )

    def authenticate(self, scope: Any, *, public: bool = False) -> Tenant:
        """The tenant of an ASGI request.

        `public`: the response is the same for everybody, so no key is needed, and none is read: a
        proxy may have added credentials of its own.

        Raises:
            RequestError: UNAUTHENTICATED, FORBIDDEN.
        """
        headers = _headers(scope["headers"])
        key = _presented(headers) if self._keys and not public else None
        keyed = key is not None
        if public and self.requires_keys:
            keyed = True  # nothing that a page of another name could not read elsewhere
        elif key is None and self.requires_keys:
            raise RequestError(
                "UNAUTHENTICATED", "an API key is required: Authorization: Bearer KEY"
            )
        tenant = self.address_tenant(scope)
        if key is not None:
            found = self._keys.tenant(key)
            if found is None:
                raise RequestError("UNAUTHENTICATED", "unknown API key")
            tenant = found
        scheme, hostless = self._proxies.scheme(scope), needs_no_host(scope)
        self.origins.check(headers, scheme, keyed=keyed, hostless=hostless)
        return tenant

    def address_tenant(self, scope: Any) -> Tenant:
        """The tenant that the request has without a key."""
        return Tenant("address", client_network(self._proxies.client(scope)))


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in pairs:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers


def _password(token: str) -> str:
    """The password of HTTP Basic credentials; "" if they are malformed."""
    try:
        return base64.b64decode(token, validate=True).decode("latin-1").partition(":")[2]
    except ValueError:  # not base64, or not ASCII
        return ""


# Basic serves clients that accept a URL but no headers, such as OpenEnv's up to 0.4.1.
_SCHEMES: Mapping[str, Callable[[str], str]] = {"bearer": str, "basic": _password}
# Prefix of a WebSocket subprotocol that carries a key as base64url without padding: pages of a
# browser cannot set other headers of a WebSocket, and a key in a URL would be logged by proxies.
_KEY_PROTOCOL = "repl-env.key."


def _presented(headers: dict[str, list[str]]) -> str | None:
    """The key in a request.

    `X-API-Key` wins, and then a subprotocol: a proxy may use `Authorization` for itself.
    """
    values = (
        headers.get("x-api-key")
        or _of_subprotocols(headers.get("sec-websocket-protocol", ()))
        or _of_authorization(headers.get("authorization", ()))
    )
    if len(values) > 1:
        raise RequestError("UNAUTHENTICATED", "the request has more than one API key")
    return values[0] if values else None


def _of_authorization(lines: Iterable[str]) -> list[str]:
    pairs = [line.strip().partition(" ")[::2] for line in lines]
    return [
        _SCHEMES[scheme.lower()](token.strip())
        for scheme, token in pairs
        if scheme.lower() in _SCHEMES
    ]


def _of_subprotocols(lines: Iterable[str]) -> list[str]:
    names = [name.strip() for line in lines for name in line.split(",")]
    return [
        _decoded(name.removeprefix(_KEY_PROTOCOL))
        for name in names
        if name.startswith(_KEY_PROTOCOL)
    ]


def _decoded(token: str) -> str:
    """The text that `token` encodes as base64url without padding; "" if it is malformed."""
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
    except ValueError:  # not base64, or not UTF-8
        return ""
