"""`OpenAIModel`: a model behind an OpenAI-compatible endpoint, asked through the openai SDK.

Retries, back-off, Retry-After and time-outs are the SDK's. Its exceptions stay in here: they hold
the request with all headers, and repeat what the endpoint said, keys included.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from repl_env.errors import ModelError
from repl_env.rlm.clients import Clients
from repl_env.rlm.failures import Secrets, bare, of_body, of_status, short
from repl_env.rlm.model import ChatModel, Completion, ModelRequest
from repl_env.rlm.replies import Reply
from repl_env.rlm.sampling import bound, checked, messages_of

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI

_OPENAI = "https://api.openai.com/v1"
# Connections of one client. How many calls run at once is the ledger's business, not a pool's.
_CONNECTIONS = 4096
MaxTokensField = Literal["max_tokens", "max_completion_tokens"]


class OpenAIModel(ChatModel):
    """A model behind an OpenAI-compatible endpoint (chat completions).

    Nothing is read from the environment, not even by the SDK; proxies are, as for any HTTP client.

    Args:
        model: its name there.
        base_url: such as "http://127.0.0.1:8000/v1"; None is OpenAI's.
        api_key: sent as bearer token; None sends none, which OpenAI's own refuses.
        headers: sent with each request. They and the key are in no repr, log or error.
        sampling: arguments of chat completions, such as `temperature`; what the SDK does not know
            (`top_k`) goes into the request's body, where `extra_body`, untouched, wins.
        timeout: seconds for one attempt. A call with its retries has that for each of them,
            unless its request says how long it may take.
        max_retries: attempts after the first, where the failure may pass.
        stream: ask for answers in pieces; for endpoints behind proxies that end long silence.
        record_tokens: ask for token ids and log-probabilities (vLLM, SGLang) and keep them in
            `Completion.tokens`; None there if the endpoint sends no ids. Not asked of OpenAI's.
        structured: send the schema of a request as `response_format`. Many endpoints refuse it.
        max_tokens_field: which field limits the answer; None: "max_completion_tokens" at OpenAI's,
            where "max_tokens" is deprecated and refused by newer models, else "max_tokens".
        client: an AsyncOpenAI of your own, used as it is, from one event loop; never closed here.

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
        _check_installed()
        if client is not None and (base_url or api_key or headers):
            raise TypeError("client goes without base_url, api_key and headers: it has them inside")
        if client is None and base_url is None and not api_key:
            raise ValueError("api_key is missing; without base_url it is OpenAI's own endpoint")
        self.name = model
        self._url = str(client.base_url) if client is not None else base_url or _OPENAI
        is_openai = (urlsplit(self._url).hostname or "").endswith("openai.com")
        self._api_key, self._headers = api_key, dict(headers)
        self._secrets = Secrets(client.api_key if client else api_key, self._headers, self._url)
        self._arguments, self._extra_body = checked(sampling, _known())
        self._timeout, self._max_retries = timeout, max_retries
        self._stream, self._structured = stream, structured
        self._record_tokens = record_tokens
        if record_tokens and not is_openai:
            self._arguments = {"logprobs": True, **self._arguments}
            self._extra_body = {"return_token_ids": True, **self._extra_body}
        self._max_tokens_field = max_tokens_field or (
            "max_completion_tokens" if is_openai else "max_tokens"
        )
        self._given = client
        authorized = "authorization" in {name.lower() for name in headers}
        self._is_open = client is None and not api_key and not authorized
        self._clients = Clients(self._client, lambda client: client.close())

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={urlsplit(self._url).hostname!r})"

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`.

        Raises:
            ModelError: there is no answer. A refusal, a call of tools, an empty reply are errors.
        """
        own = self._timeout * (self._max_retries + 1)
        limit = own if request.timeout is None else request.timeout
        try:
            async with asyncio.timeout(limit):
                return await self._ask(request)
        except ModelError as error:
            failure = error
        except TimeoutError:
            failure = ModelError("timeout", f"no answer within {limit:g} s", retryable=True)
        # Boundary: what the SDK and its transports raise.
        except Exception as error:  # noqa: BLE001
            failure = self._failure(error)
        raise bare(failure)

    async def close(self) -> None:
        """Close the connections; a client that was given stays open."""
        await self._clients.close()

    async def _ask(self, request: ModelRequest) -> Completion:
        create = (self._given or self._clients.here()).chat.completions.create
        arguments, reply = self._request(request), Reply(self._secrets)
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
        """The arguments of the SDK's call."""
        arguments: dict[str, Any] = {
            **bound(self._arguments, request.max_output_tokens, self._max_tokens_field),
            "model": request.model or self.name,
            "messages": messages_of(request.messages),
        }
        if self._extra_body:
            arguments["extra_body"] = self._extra_body
        if self._structured and request.schema is not None:
            schema = {"name": "answer", "schema": dict(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._is_open:  # no key: the SDK wants to hear that this is meant
            arguments["extra_headers"] = {"Authorization": _omitted()}
        if self._stream:
            arguments = {"stream_options": {"include_usage": True}, **arguments, "stream": True}
        if request.timeout is not None:
            arguments["timeout"] = min(request.timeout, self._timeout)
        return arguments

    def _client(self) -> AsyncOpenAI:
        """A client of this model's, for the running event loop."""
        import openai

        client = openai.AsyncOpenAI(
            api_key=self._api_key or "none",
            base_url=self._url,
            timeout=self._timeout,
            max_retries=self._max_retries,
            http_client=_transport(),
        )
        # The SDK fills these from its environment variables, for whatever endpoint it is.
        client.organization = client.project = client.admin_api_key = None
        client._custom_headers = self._headers
        return client

    def _failure(self, error: Exception) -> ModelError:
        """What an exception of the SDK's, or of a transport below it, means."""
        import openai

        match error:
            case openai.APITimeoutError():
                limit = f"{self._timeout:g} s for an attempt"
                return ModelError("timeout", f"no answer within {limit}", retryable=True)
            case openai.APIStatusError():
                headers = error.response.headers
                return of_status(error.status_code, error.body, headers, self._secrets)
            case openai.APIConnectionError():
                cause = type(error.__cause__ or error).__name__
                return ModelError("connection", f"no connection ({cause})", retryable=True)
            case openai.APIError(body=body) if body is not None:  # told inside a stream
                return of_body(body, self._secrets)
            case openai.APIError() | ValueError():  # JSON or UTF-8 that is none
                return ModelError("server", "the endpoint sent no completion", retryable=True)
            case openai.OpenAIError() | TypeError():
                return ModelError("request", short(str(error), self._secrets))
        # Exceptions of the transport, which older majors let through while they read a stream.
        name = type(error).__name__
        return ModelError("connection", f"the connection broke ({name})", retryable=True)


def _omitted() -> object:
    import openai

    return openai.Omit()


def _check_installed() -> None:
    remedy = "OpenAIModel needs the openai SDK: pip install 'repl-env[openai]'"
    try:
        import openai

        if int(openai.__version__.partition(".")[0]) < 3:
            import httpx_aiohttp  # noqa: F401 (without it, openai 2 fails at its first use)
    except ImportError as error:
        raise ImportError(f"{remedy} ({error})") from error


def _major() -> int:
    import openai

    return int(openai.__version__.partition(".")[0])


@functools.cache
def _known() -> frozenset[str]:
    """The arguments that the SDK's call has."""
    from openai.resources.chat.completions import AsyncCompletions

    return frozenset(inspect.signature(AsyncCompletions.create).parameters)


def _transport() -> Any:
    """An HTTP client for many calls at once.

    The transport of openai 2 takes seconds for 64 calls at once; with aiohttp it does not, and
    openai 3 has another.
    """
    import openai

    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
        max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS
    )
    make = openai.DefaultAsyncHttpxClient if _major() >= 3 else openai.DefaultAioHttpClient
    return make(limits=limits, verify=_certificates())


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The certificates to trust, read once: that takes longer than a session's start."""
    if _major() >= 3:
        from httpx2 import create_ssl_context
    else:
        from httpx import create_ssl_context  # type: ignore[no-redef]
    context: ssl.SSLContext = create_ssl_context()
    return context
