"""Use of the openai SDK: its two major versions, its transport, its exceptions.

The SDK is imported on use: the import takes most of a second.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.errors import ModelError
from repl_env.llm.endpoints.endpoint_errors import SecretTexts, of_body, of_status, short
from repl_env.llm.endpoints.response_limits import bound_responses

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI

# Connections of one client. The ledger and the gate limit concurrent calls, not the pool.
_CONNECTIONS = 4096


def client(
    url: str,
    key: str | None,
    headers: Mapping[str, str],
    timeout: float,
    retries: int,
    *,
    stream: bool,
) -> AsyncOpenAI:
    """Return a client for the running event loop, without settings from the environment."""
    import openai

    transport = _transport()
    bound_responses(transport, stream=stream)
    sdk_client = openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=url,
        timeout=timeout,
        max_retries=retries,
        http_client=transport,
    )
    # The SDK fills these from its environment variables, for any endpoint.
    sdk_client.organization = sdk_client.project = sdk_client.admin_api_key = None
    sdk_client._custom_headers = headers
    return sdk_client


def failure_of(error: Exception, timeout: float, secrets: SecretTexts) -> ModelError:
    """Return the error for an exception of the SDK, or of its transport.

    `timeout`: of the attempt, in seconds.
    """
    import openai

    cause = _root(error)
    if isinstance(cause, ModelError):  # of `response_limits`; older versions wrap it in their own
        return cause
    match error:
        case openai.APITimeoutError() if not _is_broken(cause):
            limit = f"{timeout:g} s for an attempt"
            return ModelError("timeout", f"no answer within {limit}", retryable=True)
        case openai.APIStatusError():
            headers = error.response.headers
            return of_status(error.status_code, error.body, headers, secrets)
        case openai.APIConnectionError():
            name = type(cause).__name__
            return ModelError("connection", f"no connection ({name})", retryable=True)
        case openai.APIError(body=body) if body is not None:  # reported inside a stream
            return of_body(body, secrets)
        case openai.APIError() | ValueError():  # invalid JSON or UTF-8
            return ModelError("server", "the endpoint sent no completion", retryable=True)
        case openai.OpenAIError() | TypeError():
            return ModelError("request", short(str(error), secrets))
    # Exceptions of the transport, which older versions let through while they read a stream.
    name = type(error).__name__
    return ModelError("connection", f"the connection broke ({name})", retryable=True)


def _root(error: BaseException) -> BaseException:
    """Return the first exception of the chain that led to `error`."""
    while (cause := error.__cause__) is not None:
        error = cause
    return error


def _is_broken(cause: BaseException) -> bool:
    """Return whether a connection failed: the aiohttp adapter reports that as a time-out."""
    is_connection_error = isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")
    return is_connection_error and not isinstance(cause, TimeoutError)


def omitted() -> object:
    """Return the value of a header to leave out."""
    import openai

    return openai.Omit()


def check_installed() -> None:
    """Raise ImportError, with the remedy, if the SDK or its transport is missing."""
    remedy = "OpenAIModel needs the openai SDK: pip install 'repl-env[openai]'"
    try:
        if _major() < 3:
            import httpx_aiohttp  # noqa: F401 (without it, openai 2 fails at its first use)
    except ImportError as error:
        raise ImportError(f"{remedy} ({error})") from error


def _major() -> int:
    import openai

    return int(openai.__version__.partition(".")[0])


@functools.cache
def known_arguments() -> frozenset[str]:
    """Return the argument names of the SDK's call."""
    from openai.resources.chat.completions import AsyncCompletions

    return frozenset(inspect.signature(AsyncCompletions.create).parameters)


def _transport() -> Any:
    """Return an HTTP client for many concurrent calls that follows no redirects, over aiohttp.

    The SDK's default checks each open connection for each request, so that 300 concurrent calls
    take
    seconds of CPU time, in openai 2 already 64; it is used if openai 3 has no aiohttp.
    """
    import openai

    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
        max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS
    )
    try:
        make = openai.DefaultAioHttpClient
        return make(limits=limits, verify=_certificates(), follow_redirects=False)
    except RuntimeError:  # aiohttp is not installed
        plain = openai.DefaultAsyncHttpxClient
        return plain(limits=limits, verify=_certificates(), follow_redirects=False)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates, read once: that takes longer than a session's start."""
    if _major() >= 3:
        from httpx2 import create_ssl_context
    else:
        from httpx import create_ssl_context  # type: ignore[no-redef]
    context: ssl.SSLContext = create_ssl_context()
    return context
