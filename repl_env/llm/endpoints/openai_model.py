"""`OpenAIModel`: a model behind an OpenAI-compatible endpoint, through the openai SDK.

Retries, back-off, Retry-After and time limits are the SDK's. Its exceptions do not leave this
module:
they hold the request with all headers, and repeat the endpoint's message, keys included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from repl_env.common.argument_checks import one_of
from repl_env.common.set_module import set_module
from repl_env.errors import ModelError
from repl_env.llm.base import ChatModel, Completion, ModelRequest
from repl_env.llm.endpoints import endpoint_arguments
from repl_env.llm.endpoints import openai_sdk as sdk
from repl_env.llm.endpoints.client_cache import ClientCache
from repl_env.llm.endpoints.completion_parser import ParsedCompletion
from repl_env.llm.endpoints.endpoint_errors import SecretTexts, bare
from repl_env.llm.model_spec import OPENAI
from repl_env.llm.sampling_settings import bound, checked, messages_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

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
            limit
            of the whole call.
        max_retries: attempts after the first, for transient failures.
        stream: request answers in pieces; for endpoints behind proxies that end silent connections.
        record_tokens: request token ids and log-probabilities (vLLM, SGLang) and keep them in
            `Completion.tokens`; None there if the endpoint sends no ids. Not requested from OpenAI.
        structured: send the schema of a request as `response_format`. Many endpoints refuse it.
        max_tokens_field: the field that limits the answer; None: "max_completion_tokens" at
            OpenAI's,
            where "max_tokens" is deprecated and refused by newer models, else "max_tokens".
        client: an AsyncOpenAI of the caller, used as it is, from one event loop; never closed here,
            and
            without the limits on responses.

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
        sdk.check_installed()
        endpoint_arguments.check(
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
        arguments, extra_body = checked(sampling, sdk.known_arguments())
        if self._record_tokens and not self._is_openai:
            return {"logprobs": True, **arguments}, {"return_token_ids": True, **extra_body}
        return arguments, extra_body

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, host={urlsplit(self._url).hostname!r})"

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`.

        Raises:
            ModelError: there is no answer. A refusal, a tool call and an empty reply are errors.
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
        # Boundary: exceptions of the SDK and its transports.
        except Exception as error:  # noqa: BLE001
            failure = sdk.failure_of(error, self._timeout, self._secrets)
        raise bare(failure)

    async def close(self) -> None:
        """Close the connections; a given client stays open."""
        await self._clients.close()

    async def _ask(self, request: ModelRequest) -> Completion:
        create = (self._given or self._clients.here()).chat.completions.create
        arguments, reply = self._request(request), ParsedCompletion(self._secrets)
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
            arguments["extra_headers"] = {"Authorization": sdk.omitted()}
        if self._stream:
            arguments = {"stream_options": {"include_usage": True}, **arguments, "stream": True}
        return arguments

    def _client(self) -> AsyncOpenAI:
        key, headers = self._api_key, self._headers
        return sdk.client(
            self._url, key, headers, self._timeout, self._max_retries, stream=self._stream
        )


def _check_client(
    client: object, base_url: str | None, api_key: str | None, headers: Mapping[str, str]
) -> None:
    """Raise TypeError or ValueError unless the arguments name one endpoint and its key."""
    if client is not None and (base_url or api_key or headers):
        raise TypeError("client goes without base_url, api_key and headers: it has them inside")
    if client is None and base_url is None and not api_key:
        raise ValueError("api_key is missing; without base_url it is OpenAI's own endpoint")
