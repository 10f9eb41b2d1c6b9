"""`HFModel`: a model of Hugging Face's Inference Providers, or of a deployment, by huggingface_hub.

The library neither retries nor limits where it looks for a token; this module does both. The
library's exceptions do not leave this module: they hold the request with all headers.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from repl_env.common.display import set_module
from repl_env.errors import ModelError
from repl_env.llm import endpoints
from repl_env.llm.base import ChatModel, Completion, ModelRequest, bound, checked, messages_of
from repl_env.llm.completions import ParsedCompletion, SecretTexts, bare, of_status, short
from repl_env.llm.endpoints import ClientCache, bound_responses, with_retries

if TYPE_CHECKING:
    from huggingface_hub import AsyncInferenceClient


DEFAULT_MODEL = "Qwen/Qwen3.5-9B"  # OpenEnv's default
# OpenEnv's too. `max_tokens` is required: the endpoints' own default is 100.
SAMPLING: Mapping[str, Any] = {
    "max_tokens": 2048,
    "temperature": 0.6,
    "top_p": 0.95,
    "presence_penalty": 0.0,
    "top_k": 20,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "chat_template_kwargs": {"enable_thinking": False},
}


@set_module("repl_env.rlm")
class HFModel(ChatModel):
    """A model on Hugging Face, behind its router or an endpoint of its own.

    At most 100 calls of one model and event loop are sent concurrently; the rest wait.

    Args:
        model: its name on the Hub.
        token: of Hugging Face, or a provider's key with `provider`. Only this token is used,
            neither an environment variable nor a cached login.
        base_url: of an Inference Endpoint or another deployment; None is the router.
        provider: the provider that answers; None: the router chooses.
        headers: sent with each request. They and the token are in no repr, log or error.
        sampling: overrides `SAMPLING`, OpenEnv's settings; None removes a setting. Settings unknown
            to the library go into the request's body, where `extra_body` takes precedence.
        timeout: seconds for one attempt. Each retry has the same limit, unless the request sets a
            limit of the whole call.
        max_retries: attempts after the first, for transient failures.

    Raises:
        ImportError: huggingface_hub is not installed.
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        token: str | None = None,
        base_url: str | None = None,
        provider: str | None = None,
        headers: Mapping[str, str] = {},
        sampling: Mapping[str, Any] = {},
        timeout: float = 300.0,
        max_retries: int = 2,
    ) -> None:
        _check_installed()
        endpoints.check_arguments(
            model=model,
            base_url=base_url,
            key=token,
            headers=headers,
            timeout=timeout,
            max_retries=max_retries,
            key_name="token",
        )
        if provider is not None and not isinstance(provider, str):
            raise TypeError(f"provider must be a str, not {type(provider).__name__}")
        if _is_address(model):
            raise ValueError("model is a name; the address of an endpoint goes into base_url")
        self.name = model
        self._token, self._base_url, self._provider = token, base_url, provider
        self._headers = dict(headers)
        self._secrets = SecretTexts(token, self._headers, base_url)
        # For its errors, and so that extra_body takes precedence.
        _, sampling_fields = checked(sampling, ())
        self._arguments, self._extra_body = checked({**SAMPLING, **sampling_fields}, _known())
        self._timeout, self._max_retries = timeout, max_retries
        self._clients = ClientCache(self._client, _close)

    def __repr__(self) -> str:
        return f"HFModel({self.name!r}, host={urlsplit(self._base_url or '').hostname!r})"

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`.

        Raises:
            ModelError: there is no answer. A refusal is one; content that is null is an empty text.
        """
        if not (self._token or self._base_url):
            raise ModelError("authentication", "HFModel has no token: give it one (token=...)")
        # Names come from code in sessions too, and the library would send the token to a URL.
        if request.model is not None and _is_address(request.model):
            raise ModelError("request", "model must be a name, not an address")
        own = self._timeout * (self._max_retries + 1)
        limit = own if request.timeout is None else request.timeout
        arguments = self._request(request)
        try:
            async with asyncio.timeout(limit):
                return await with_retries(lambda: self._attempt(arguments), self._max_retries)
        except ModelError as error:
            failure = error
        except TimeoutError:
            failure = ModelError("timeout", f"no answer within {limit:g} s", retryable=True)
        raise bare(failure)

    async def close(self) -> None:
        """Close the connections."""
        await self._clients.close()

    async def _attempt(self, arguments: dict[str, Any]) -> Completion:
        reply = ParsedCompletion(self._secrets)
        try:
            async with asyncio.timeout(self._timeout):
                client = self._clients.here()
                await _prepare(client)
                reply.add(await client.chat_completion(**arguments), "message")
            return reply.completion(arguments["model"], tokens=False)
        except ModelError:
            raise
        # Boundary: exceptions of the library and its transport.
        except Exception as error:  # noqa: BLE001
            raise self._failure(error) from None

    def _request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the arguments of the library's call."""
        model = request.model or self.name
        # The router takes the provider with the name. Otherwise the library looks it up, in the
        # event loop and with the cached login.
        if self._provider and self._is_routed():
            model = f"{model}:{self._provider}"
        arguments = bound(self._arguments, request.max_output_tokens, "max_tokens")
        return {
            **{name: value for name, value in arguments.items() if value is not None},
            "model": model,
            "messages": messages_of(request.messages_with_prefix),
            "extra_body": {k: v for k, v in self._extra_body.items() if v is not None},
        }

    def _is_routed(self) -> bool:
        return self._base_url is None and (self._token or "").startswith("hf_")

    def _client(self) -> AsyncInferenceClient:
        """Return a new client of this model for the running event loop."""
        from huggingface_hub import AsyncInferenceClient

        headers: dict[str, Any] = dict(self._headers)
        if not self._token and "authorization" not in {name.lower() for name in headers}:
            headers["authorization"] = None  # otherwise the library sends a cached login
        return AsyncInferenceClient(
            base_url=self._base_url,
            provider=None if self._is_routed() or self._base_url else self._provider,  # type: ignore[arg-type]
            token=self._token,
            timeout=self._timeout,
            headers=headers,
        )

    def _failure(self, error: Exception) -> ModelError:
        """Return the error for an exception of the library, or of its transport."""
        from huggingface_hub.errors import HfHubHTTPError

        match error:
            case TimeoutError():
                limit = f"{self._timeout:g} s for an attempt"
                return ModelError("timeout", f"no answer within {limit}", retryable=True)
            case HfHubHTTPError():
                response = error.response
                body = _json_or_text(response.text)
                return of_status(response.status_code, body, response.headers, self._secrets)
            case ValueError() if not (self._base_url or self._is_routed()):  # of the provider
                return ModelError("not_found", short(str(error), self._secrets))
            case ValueError() | TypeError() | AttributeError():
                return ModelError("server", "the endpoint sent no completion", retryable=True)
        name = type(error).__name__
        address = short(self._base_url or "Hugging Face", self._secrets)
        text = f"no connection to {address}, or it broke ({name})"
        return ModelError("connection", text, retryable=True)


async def _prepare(client: AsyncInferenceClient) -> None:
    """Make redirects and endless answers fail. The library has no setting for either."""
    transport = await client._get_async_client()  # type: ignore[no-untyped-call]
    if transport.follow_redirects:
        transport.follow_redirects = False
        bound_responses(transport)
        hooks = transport.event_hooks
        transport.event_hooks = {**hooks, "response": [*hooks["response"], _refuse_redirect]}


async def _refuse_redirect(response: Any) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    if response.is_redirect:
        await response.aread()
        raise HfHubHTTPError("a redirect", response=response)


def _is_address(model: str) -> bool:
    return "://" in model


async def _close(client: AsyncInferenceClient) -> None:
    await client.close()  # type: ignore[no-untyped-call]


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check_installed() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        remedy = "HFModel needs huggingface_hub: pip install 'repl-env[hf]'"
        raise ImportError(f"{remedy} ({error})") from error


@functools.cache
def _known() -> frozenset[str]:
    """Return the argument names of the library's call."""
    from huggingface_hub import AsyncInferenceClient

    return frozenset(inspect.signature(AsyncInferenceClient.chat_completion).parameters)
