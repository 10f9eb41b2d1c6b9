"""`OpenAIModel`: a model behind an OpenAI-compatible endpoint, through the openai SDK.

Time limits of an attempt are the SDK's; retries are those of `HFModel` (`endpoints.py`), because
the SDK retries no completion that is malformed. Its exceptions do not leave this module: they hold
the request with all headers, and repeat the endpoint's message, keys included.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from repl_env.common.display import set_module
from repl_env.common.values import one_of
from repl_env.errors import ModelError
from repl_env.llm import endpoints
from repl_env.llm.base import ChatModel, Completion, ModelRequest, bound, checked, messages_of
from repl_env.llm.completions import ParsedCompletion, SecretTexts, bare, of_body, of_status, short
from repl_env.llm.endpoints import ClientCache, bound_responses, with_retries
from repl_env.llm.spec import OPENAI

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI


# Use of the openai SDK: its two major versions, its transport, its exceptions.
#
# The SDK is imported on use: the import takes most of a second.

# Connections of one client. The ledger and the gate limit concurrent calls, not the pool.
_CONNECTIONS = 4096


def sdk_client(
    url: str,
    key: str | None,
    headers: Mapping[str, str],
    timeout: float,
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
        max_retries=0,  # `endpoints.py` retries malformed completions too
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
    if isinstance(cause, ModelError):  # of `endpoints`; older versions wrap it in their own
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
            address = short(str(error.request.url), secrets)
            return ModelError("connection", f"no connection to {address} ({name})", retryable=True)
        case openai.APIError(body=body) if body is not None:  # reported inside a stream
            return of_body(body, secrets)
        case openai.APIError() | ValueError():  # invalid JSON or UTF-8
            return ModelError("server", "the endpoint sent no completion", retryable=True)
        case openai.OpenAIError() | TypeError():
            return ModelError("request", short(str(error), secrets))
    # Exceptions of the transport, which older versions let through while they read a stream.
    name = type(error).__name__
    return ModelError("connection", f"the connection broke ({name})", retryable=True)


def is_retried(error: Exception) -> bool:
    """Return whether the SDK itself retries such a failure."""
    import openai

    return isinstance(error, (openai.APIStatusError, openai.APIConnectionError))


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
    take seconds of CPU time, in openai 2 already 64; it is used if openai 3 has no aiohttp.
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


MaxTokensField = Literal["max_tokens", "max_completion_tokens"]

# The fields by which vLLM and SGLang continue the last message.
_GO_ON = {"add_generation_prompt": False, "continue_final_message": True}


@set_module("repl_env.rlm")
class OpenAIModel(ChatModel):
    """A model behind an OpenAI-compatible endpoint (chat completions).

    Nothing is read from the environment, not even by the SDK, except for proxies.

    Args:
        model: its name there.
        base_url: such as "http://127.0.0.1:8000/v1"; None is OpenAI's.
        api_key: sent as bearer token; None sends none, which OpenAI's own endpoint refuses.
        headers: sent with each request. They and the key are in no repr, log or error.
        sampling: arguments of chat completions, such as `temperature`; settings unknown to the SDK
            (`top_k`) go into the request's body, where `extra_body` takes precedence.
        timeout: seconds for one attempt. Each retry has the same limit, unless the request sets a
            limit of the whole call.
        max_retries: attempts after the first, for transient failures.
        stream: request answers in pieces; for endpoints behind proxies that end silent connections.
        record_tokens: request token ids and log-probabilities (vLLM, SGLang) and keep them in
            `Completion.tokens`; None there if the endpoint sends no ids. Not requested from OpenAI.
        structured: send the schema of a request as `response_format`. Many endpoints refuse it.
        max_tokens_field: the field that limits the answer; None: "max_completion_tokens" at
            OpenAI's, where "max_tokens" is deprecated and refused by newer models, else
            "max_tokens".
        client: an AsyncOpenAI of the caller, used as it is, from one event loop; never closed here,
            and without the limits on responses. It retries statuses and connections by its own
            settings.

    Raises:
        ImportError: the openai SDK, or its fast transport, is not installed.
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] = {},
        sampling: Mapping[str, Any] = {},
        timeout: float = 600.0,
        max_retries: int = 2,
        stream: bool = False,
        record_tokens: bool = False,
        structured: bool = False,
        max_tokens_field: MaxTokensField | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        check_installed()
        endpoints.check_arguments(
            model=model,
            base_url=base_url,
            key=api_key,
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
        )
        if max_tokens_field is not None:
            one_of(max_tokens_field, get_args(MaxTokensField), "max_tokens_field")
        _check_client(client, base_url, api_key, headers)
        self.name = model
        self._url = str(client.base_url) if client is not None else base_url or OPENAI
        self._is_openai = (urlsplit(self._url).hostname or "").endswith("openai.com")
        # In the SDK's spelling: older versions take "authorization" for another header than theirs.
        self._api_key = api_key
        self._headers = {name.title(): value for name, value in headers.items()}
        self._secrets = SecretTexts(client.api_key if client else api_key, self._headers, self._url)
        self._record_tokens = record_tokens
        self._arguments, self._extra_body = self._request_fields(sampling)
        self._timeout, self._max_retries = timeout, max_retries
        self._stream, self._structured = stream, structured
        self._max_tokens_field = max_tokens_field or (
            "max_completion_tokens" if self._is_openai else "max_tokens"
        )
        self._given = client
        self._is_open = client is None and not api_key and "Authorization" not in self._headers
        self._clients = ClientCache(self._client, lambda client: client.close())

    def _request_fields(
        self, sampling: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the arguments of each request and the fields of its body that the SDK lacks."""
        arguments, extra_body = checked(sampling, known_arguments())
        if self._record_tokens and not self._is_openai:
            return {"logprobs": True, **arguments}, {"return_token_ids": True, **extra_body}
        return arguments, extra_body

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={urlsplit(self._url).hostname!r})"

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`.

        Raises:
            ModelError: there is no answer. A refusal is one; content that is null is an empty text.
        """
        own = self._timeout * (self._max_retries + 1)
        limit = own if request.timeout is None else request.timeout
        try:
            async with asyncio.timeout(limit):
                arguments = self._request(request)
                return await with_retries(lambda: self._attempt(arguments), self._max_retries)
        except ModelError as error:
            failure = error
        except TimeoutError:
            failure = ModelError("timeout", f"no answer within {limit:g} s", retryable=True)
        # Boundary: exceptions of a given client.
        except Exception as error:  # noqa: BLE001
            failure = failure_of(error, self._timeout, self._secrets)
        raise bare(failure)

    async def close(self) -> None:
        """Close the connections; a given client stays open."""
        await self._clients.close()

    async def _attempt(self, arguments: dict[str, Any]) -> Completion:
        try:
            return await self._ask(arguments)
        except ModelError:
            raise
        # Boundary: exceptions of the SDK and its transports.
        except Exception as error:
            if self._given is not None and is_retried(error):
                raise  # a given client has retried it by its own settings
            raise failure_of(error, self._timeout, self._secrets) from None

    async def _ask(self, arguments: dict[str, Any]) -> Completion:
        create = (self._given or self._clients.here()).chat.completions.create
        reply = ParsedCompletion(self._secrets)
        if self._stream:
            async with await create(**arguments) as events:
                async for event in events:
                    reply.add(event, "delta")
            if reply.finish_reason is None:
                raise ModelError("connection", "the stream ended before the answer", retryable=True)
        else:
            reply.add(await create(**arguments), "message")
        return reply.completion(arguments["model"], tokens=self._record_tokens)

    def _request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments of the SDK's call."""
        arguments: dict[str, Any] = {
            **bound(self._arguments, request.max_output_tokens, self._max_tokens_field),
            "model": request.model or self.name,
            "messages": messages_of(request.messages_with_prefix),
        }
        body = self._extra_body
        if request.prefix is not None and not self._is_openai:
            body = {**_GO_ON, **body}
        if body:
            arguments["extra_body"] = body
        if self._structured and request.schema is not None:
            schema = {"name": "answer", "schema": dict(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._is_open:  # no key: the SDK requires an explicit value
            arguments["extra_headers"] = {"Authorization": omitted()}
        if self._stream:
            arguments = {"stream_options": {"include_usage": True}, **arguments, "stream": True}
        return arguments

    def _client(self) -> AsyncOpenAI:
        key, headers = self._api_key, self._headers
        return sdk_client(self._url, key, headers, self._timeout, stream=self._stream)


def _check_client(
    client: object, base_url: str | None, api_key: str | None, headers: Mapping[str, str]
) -> None:
    """Raise TypeError or ValueError unless the arguments name one endpoint and its key."""
    if client is not None and (base_url or api_key or headers):
        raise TypeError("client goes without base_url, api_key and headers: it has them inside")
    if client is None and base_url is None and not api_key:
        raise ValueError("api_key is missing; without base_url it is OpenAI's own endpoint")
