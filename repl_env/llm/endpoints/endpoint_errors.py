"""Errors for an endpoint's failures, without secrets.

Endpoints repeat keys in their messages, and libraries put requests with all headers into their
exceptions. So messages are composed from the useful parts, with secrets removed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from repl_env.common.json_values import MAX_DEPTH, visible
from repl_env.errors import ModelError

# Status → kind, and whether the same request may succeed later.
_BY_STATUS: dict[int, tuple[str, bool]] = {
    401: ("authentication", False),  # no key, or a wrong one
    402: ("rate_limit", False),  # the account has no money left: waiting does not help
    403: ("authentication", False),  # the key lacks this permission
    408: ("timeout", True),  # the endpoint timed out
    409: ("server", True),  # a lock inside the endpoint, which the SDKs retry too; too early
    425: ("server", True),  # too early
    429: ("rate_limit", True),
}
# OpenAI's codes, used by other endpoints too, are more specific than their status.
_BY_CODE: dict[str, tuple[str, bool]] = {
    "insufficient_quota": ("rate_limit", False),  # 429, but waiting does not help
    "content_filter": ("refused", False),  # 400 of a filter before the model
}
# Not followed: the question, and headers with keys, would go to an unintended host, and a server
# would send requests wherever a stranger's endpoint points.
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LONGEST = 300  # characters of the endpoint's own message
_SHORTEST_SECRET = 6  # removing "1" or "true" would only garble the text
_CUT_OUT = "[secret]"
_DEEPEST = 8  # nested errors, as gateways before gateways send them


class SecretTexts:
    """Texts that no message may hold: a key, the values of headers, a login inside a URL."""

    def __init__(
        self, key: str | None, headers: Mapping[str, str], base_url: str | None = None
    ) -> None:
        self._parts: list[str] = []
        self.learn(key, headers, base_url)

    def __repr__(self) -> str:
        return "Secrets()"

    def learn(
        self, key: str | None, headers: Mapping[str, str], base_url: str | None = None
    ) -> None:
        """Add further secrets."""
        url = urlsplit(base_url or "")
        secrets = [key, url.username, url.password, *headers.values()]
        parts = {part for text in secrets if text for part in (text, *text.split())}
        parts = {part for part in parts if len(part) >= _SHORTEST_SECRET}
        self._parts = sorted(parts.union(self._parts), key=len, reverse=True)

    def cut(self, text: str) -> str:
        """Return `text` without the secrets."""
        for part in self._parts:
            text = text.replace(part, _CUT_OUT)
        return text

    def cut_all(self, value: Any, deepest: int = MAX_DEPTH) -> Any:
        """Return a JSON value without the secrets; deeply nested parts are left out."""
        if isinstance(value, str):
            return self.cut(value)
        if not isinstance(value, (dict, list)):
            return value
        if not deepest:
            return None
        if isinstance(value, list):
            return [self.cut_all(each, deepest - 1) for each in value]
        return {self.cut(name): self.cut_all(each, deepest - 1) for name, each in value.items()}


def of_status(
    status: int, body: object, headers: Mapping[str, str], secrets: SecretTexts
) -> ModelError:
    """Return the error for an HTTP status, with details from the body."""
    code, text = _code_and_text(body)
    kind, retryable = _BY_STATUS.get(status, ("server" if status >= 500 else "request", False))
    if status >= 500:
        retryable = True
    if code in _BY_CODE:
        kind, retryable = _BY_CODE[code]
    if status in _REDIRECTS:
        text = f"the endpoint redirects to {headers.get('location', '?')}, which is not followed"
    message = f"status {status}" + (f": {short(text, secrets)}" if text else "")
    return ModelError(kind, message, retryable=retryable, retry_after=_retry_after(headers))


def of_body(error: object, secrets: SecretTexts) -> ModelError:
    """Return the error in a body, or in a stream, after status 200."""
    code, text = _code_and_text(error)
    if code.isdecimal() and len(code) == 3 and 400 <= int(code) < 600:
        return of_status(int(code), error, {}, secrets)
    kind, retryable = _BY_CODE.get(code, ("server", True))
    return ModelError(
        kind, short(text or "an error without a message", secrets), retryable=retryable
    )


def bare(failure: ModelError) -> ModelError:
    """Return `failure` without its cause, which tracebacks print; to be raised outside `except`."""
    failure.__context__ = failure.__cause__ = None
    return failure


def short(text: str, secrets: SecretTexts) -> str:
    """Return one bounded line of `text`; nothing of an HTML page."""
    if re.match(r"\s*<(!doctype|html|\?xml)", text, re.IGNORECASE):
        return "a page of HTML"
    # Secrets are removed before the text is cut: half a key is a secret too.
    line = visible(" ".join(secrets.cut(text).split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _code_and_text(body: object) -> tuple[str, str]:
    """Return the code and the message in the body of an error; "" for each that is missing."""
    for _ in range(_DEEPEST):
        if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
            body = body["error"]
    if isinstance(body, str):
        return "", body
    if not isinstance(body, Mapping):
        return "", ""
    texts: Iterable[object] = (body.get(name) for name in ("message", "detail"))
    text = next((text for text in texts if isinstance(text, str)), "")
    code = body.get("code")
    return (str(code) if isinstance(code, (str, int)) else ""), text


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in `Retry-After-Ms` or either form of `Retry-After` (RFC 9110, 10.2.3)."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value)
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return math.nan
