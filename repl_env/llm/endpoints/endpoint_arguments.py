"""Arguments that the models behind endpoints share, checked when a model is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from repl_env.common.argument_checks import at_least, of_kind
from repl_sandbox.session_limits import check_seconds


def check(
    *,
    model: Any,
    base_url: Any,
    key: Any,
    headers: Any,
    timeout: Any,
    max_retries: Any,
    key_name: str = "api_key",
) -> None:
    """Check the arguments.

    Raises:
        TypeError, ValueError: naming the argument, without a key, a header or a login in it.
    """
    of_kind(model, str, "model")
    if not model:
        raise ValueError("model must not be empty")
    if base_url is not None:
        _check_url(base_url)
    if key is not None:
        of_kind(key, str, key_name)
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        of_kind(name, str, "headers: a name")
        of_kind(value, str, f"headers: {name}")
    check_seconds(timeout, "timeout")
    at_least(max_retries, 0, "max_retries")


def _check_url(value: object) -> None:
    of_kind(value, str, "base_url")
    try:
        parts = urlsplit(str(value))
    except ValueError:  # its text may repeat a login
        raise ValueError("base_url is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("base_url must begin with http:// or https:// and name a host")
