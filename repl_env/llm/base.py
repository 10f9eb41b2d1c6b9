"""The interface of a language model: it answers a list of chat messages, within a gate."""

from __future__ import annotations

import asyncio
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from repl_env.common.display import AsyncCloseable, set_module
from repl_env.common.threads import RUNS, FairQueue, accepts, call_user_function, check_takes
from repl_env.common.values import at_least, replace_surrogates
from repl_env.errors import ModelError
from repl_env.interfaces import Message

# The interface of a language model: it answers a list of chat messages.
#
# Users may pass any function as a model (`as_model`). Endpoints, local models and scripts are
# classes with token counts, a limit on the answer, and sampling. Nothing here depends on a
# provider.

Purpose: TypeAlias = Literal["turn", "last", "query", "repair"]
ModelFunction: TypeAlias = Callable[..., "str | Completion | Awaitable[str | Completion]"]

# A chat template puts a few tokens around each message; no known one exceeds these.
_TOKENS_PER_MESSAGE = 16


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The reported cost of one answer; None: not reported.

    `usd` is set only if the endpoint itself reports a price; the user's prices belong to the
    ledger.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The tokens of one answer, for training; empty if the endpoint does not return them.

    `logprobs` are natural logarithms, one for each of `output_ids`.
    """

    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a model. `finish_reason` "length" means that it was cut."""

    text: str
    usage: ModelUsage = field(default_factory=ModelUsage)
    finish_reason: str | None = None
    model: str | None = None
    tokens: TokenTrace | None = None

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut at its token limit."""
        return self.finish_reason == "length"


# The run of requests of the host's own, by which it checks an endpoint.
PROBE_RUN = "probe"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a request in a tree of runs: for scripts and replays, never sent to an endpoint.

    `run` is the path of the run ("0" is the root, "0.3" the child that its third call made);
    `number` counts that run's turns, or its calls if `purpose` is "query" or "repair".
    """

    run: str = "0"
    purpose: Purpose = "turn"
    number: int = 0


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request to a model.

    Args:
        model: one of several models behind an endpoint; None: the default one.
        max_output_tokens: limit of the answer; None: the model's own limit.
        timeout: seconds for the whole call with its retries; None: the model's own limit.
        schema: a JSON schema for the text. A hint if the endpoint supports it; the caller checks
            the answer.
        prefix: the beginning of the answer, which the model continues. The text of the completion
            is the rest, or all of it. A model without this feature sees the assistant's last
            message.
    """

    messages: Sequence[Message]
    model: str | None = None
    max_output_tokens: int | None = None
    timeout: float | None = None
    schema: Mapping[str, Any] | None = None
    prefix: str | None = None
    origin: Origin = field(default_factory=Origin)

    @property
    def messages_with_prefix(self) -> Sequence[Message]:
        """The messages, with the assistant's message that `prefix` begins."""
        if self.prefix is None:
            return self.messages
        return (*self.messages, {"role": "assistant", "content": self.prefix})


@set_module("repl_env.rlm")
class ChatModel(AsyncCloseable, ABC):
    """A model. Safe to use from several tasks, and from event loops of several threads.

    The creator closes it: with `with` around blocking calls, with `async with` on an event loop, or
    with `await model.close()`. A run leaves a given model open.

    Attributes:
        name: its name in reports and price tables; None if it has none.
        bounded: whether it respects `max_output_tokens`.
    """

    name: str | None = None
    bounded: bool = True

    @abstractmethod
    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`.

        Raises:
            ModelError: there is no answer, with the reason.
        """

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return an upper bound of the tokens in `messages`.

        Without a tokenizer, this is the length in UTF-8: no byte-level vocabulary makes more
        tokens.
        """
        return sum(map(_bytes_of, messages)) + _TOKENS_PER_MESSAGE * (len(messages) + 1)

    async def close(self) -> None:
        """Release connections and memory. The model may be used again afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        RUNS.finish(self.close())

    async def __call__(self, messages: Sequence[Message], model: str | None = None) -> Completion:
        """Answer `messages`: a model can also be passed as a user's function."""
        return await self.complete(ModelRequest(messages=messages, model=model))


class CallableModel(ChatModel):
    """A user's function as a model: `(messages)` or `(messages, model)`, plain or async.

    It returns a str or a `Completion`. A plain function runs in a thread.
    """

    bounded = False

    def __init__(self, function: ModelFunction, name: str | None = None) -> None:
        self._function = function
        self._takes_model = accepts(function, [], None)
        self.name = name

    async def complete(self, request: ModelRequest) -> Completion:
        """Call the function.

        Raises:
            ModelError: it raised, or returned something else than an answer.
        """
        arguments: tuple[Any, ...] = (list(request.messages_with_prefix),)
        if self._takes_model:
            arguments = (*arguments, request.model)
        try:
            async with asyncio.timeout(request.timeout):
                answer = await call_user_function(self._function, *arguments)
        except ModelError:
            raise
        except TimeoutError as error:
            raise ModelError("timeout", str(error) or "time is up") from error
        # Boundary: a user's function may raise anything.
        except Exception as error:
            raise ModelError(type(error).__name__, str(error)) from error
        return as_completion(answer)


def as_completion(answer: object) -> Completion:
    """Return the result of a model's function as a `Completion`; ModelError if it is invalid."""
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        return Completion(replace_surrogates(answer))
    raise ModelError("type", f"the model returned {type(answer).__name__}, not str or Completion")


@set_module("repl_env.rlm")
def as_model(model: object, name: str = "model") -> ChatModel:
    """Return `model` as a model; TypeError naming the argument `name` if it cannot be one.

    The signature of a function is checked now rather than in a run.
    """
    if isinstance(model, ChatModel):
        return model
    if isinstance(model, type) and issubclass(model, ChatModel):
        raise TypeError(f"{name} must be a model, not the class {model.__name__}: make one of it")
    if callable(model):
        check_takes(model, "messages", name)
        return CallableModel(model)
    hint = "; OpenAIModel(name) is the model of that name" if isinstance(model, str) else ""
    raise TypeError(f"{name} must be a model or a function, not {type(model).__name__}{hint}")


def _bytes_of(message: Message) -> int:
    """Return the length of a message in UTF-8, which for most text is known without encoding it."""
    content = message["content"]
    if not isinstance(content, str):
        content = "".join(str(part.get("text", part)) for part in content)
    return len(content) if content.isascii() else len(content.encode("utf-8", "replace"))


# The scope of a failed request to a model: this request alone, or perhaps every request.
#
# A policy chooses its requests. A failure of one request is therefore the policy's, and only a
# failure for everybody is the infrastructure's. An error proves the first, and never the second,
# which `repl_env.rlm.answerers` checks.

# Kinds of `ModelError` that one request causes, with the reason.
OF_REQUEST: Final[Mapping[str, str]] = {
    "request": "400, 413, 422 and the like: the endpoint refuses this request, for example its "
    "size",
    "refused": "the model, or a filter before it, refuses this content",
    "schema": "the answer does not fit the schema that the code chose",
    "type": "the answer to this prompt has no text",
    "script": "the prepared answers are used up by the number of calls",
    "child": "the child run that the code asked for ended in an error",
}

# HTTP statuses below 500 that concern every request, with the reason.
FOR_EVERYBODY: Final[Mapping[int, str]] = {
    401: "no key, or a wrong one",
    402: "the account has no money",
    403: "the key lacks a permission",
    404: "no such endpoint, or no such model",
    407: "the proxy wants a login",
    408: "the endpoint was too slow",
    409: "a lock inside the endpoint",
    425: "too early",
    429: "a rate limit",
}

# Exceptions of a user's function about its arguments: the same ones fail again.
_ABOUT_ARGUMENTS = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    RecursionError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
# The text of a refusal, in an exception that has neither a status nor a telling class.
_REFUSAL = re.compile(
    r"^\W*(400|413|422)\b|\b(status|code|error|http)\W{0,3}(code\W{0,3})?(400|413|422)\b"
    r"|context.{0,3}(length|window|size)|too many tokens|content.{0,3}(filter|policy)",
    re.IGNORECASE,
)
_STATUSES = ("status_code", "status", "http_status", "code")


def may_concern_everybody(error: Exception) -> bool:
    """Return whether `error` may be a failure of every request, and not of one alone."""
    if not isinstance(error, ModelError) or error.kind in OF_REQUEST:
        return False
    cause = error.__cause__
    if cause is None or isinstance(cause, ModelError):
        return True
    if (status := _status_of(cause)) is not None:
        return status >= 500 or status in FOR_EVERYBODY
    if isinstance(cause, (ConnectionError, TimeoutError)):
        return True
    return not isinstance(cause, _ABOUT_ARGUMENTS) and not _REFUSAL.search(str(cause))


def failure_kind(error: ModelError) -> str:
    """Return the kind of `error`, "rate_limit" for every error that says so by a status."""
    cause = error.__cause__
    return "rate_limit" if cause is not None and _status_of(cause) == 429 else error.kind


def _status_of(cause: BaseException) -> int | None:
    """Return the HTTP status in an exception of a client library, or None."""
    for owner in (cause, getattr(cause, "response", None)):
        for name in _STATUSES:
            status = getattr(owner, name, None)
            if type(status) is int and 400 <= status < 600:
                return status
    return None


# `RequestGate`: a limit on concurrent requests to endpoints, for a whole process.
#
# It also limits the concurrent sub-calls of one episode (`max_concurrent_subcalls`). There a
# child run holds a slot too, and the sub-calls of that run have their own gate: no run waits
# behind a gate in which it holds a slot.
#
# A slot of the process is held only while one request is with a model. A run that waits for its
# children, or for its share of a budget, holds none. So the holder of a slot waits for nobody
# behind the gate, and no depth of runs and no limit can cause a deadlock.

# Common clients' connection pools serve this many without queueing (httpx: 100), and the lowest
# tiers of providers do not take this many for an attack.
_REQUESTS = 64


@set_module("repl_env.rlm")
class RequestGate:
    """A limit on concurrent work, for the event loops of all threads together.

    `async with gate:` waits for a slot; first come, first served. `limit` may change at any time: a
    higher one admits waiters at once, a lower one lets those inside finish first.

    Raises:
        TypeError, ValueError: `limit`, called `name`, is not an int of at least 1.
    """

    def __init__(self, limit: int, name: str = "limit") -> None:
        self._limit = at_least(limit, 1, name)
        self._in_flight = 0
        self._lock = threading.RLock()
        self._queue: FairQueue[None, Literal[True]] = FairQueue(
            self._lock, self._serve, self._release
        )

    @property
    def limit(self) -> int:
        """The number of slots."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = at_least(limit, 1, "limit")
            self._queue.serve_waiting()

    @property
    def in_flight(self) -> int:
        """The number of slots that are taken or being handed over."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._queue)

    async def __aenter__(self) -> RequestGate:
        await self._queue.get(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without awaiting, so that a coroutine that is thrown away leaves too.
        with self._lock:
            self._in_flight -= 1
            self._queue.serve_waiting()

    def _serve(self, _: None) -> Literal[True] | None:
        if self._in_flight >= self._limit:
            return None
        self._in_flight += 1
        return True

    def _release(self, _: Literal[True]) -> None:
        self._in_flight -= 1
        self._queue.serve_waiting()


REQUESTS = RequestGate(_REQUESTS)


# A user's sampling settings, sorted into arguments of a call and fields of the request body.

# Settings that are reserved, with the reason.
_RESERVED = {
    "messages": "they are the question",
    "model": "it is an argument of its own",
    "stream": "it is an argument of its own",
    "timeout": "it is an argument of its own",
    "extra_headers": "headers is an argument of its own, and kept out of logs",
    "n": "one answer is asked for",
}
_LIMITS = ("max_tokens", "max_completion_tokens")


def checked(
    sampling: Mapping[str, Any], known: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that a library's call accepts, and the fields for the request's body.

    Raises:
        TypeError, ValueError: naming a setting that is not allowed.
    """
    if not isinstance(sampling, Mapping):
        raise TypeError(f"sampling must be a mapping, not {type(sampling).__name__}")
    for name in sampling:
        if name in _RESERVED:
            raise ValueError(f"sampling[{name!r}] is not for sampling: {_RESERVED[name]}")
    extra = sampling.get("extra_body") or {}
    if not isinstance(extra, Mapping):
        raise TypeError(f"sampling['extra_body'] must be a mapping, not {type(extra).__name__}")
    rest = {name: value for name, value in sampling.items() if name != "extra_body"}
    arguments = {name: value for name, value in rest.items() if name in known}
    unknown = {name: value for name, value in rest.items() if name not in known}
    return arguments, {**unknown, **extra}


def bound(arguments: Mapping[str, Any], max_tokens: int | None, field: str) -> dict[str, Any]:
    """Return `arguments` with a limit of the answer: `max_tokens`, or their own if that is less."""
    own = [value for name in _LIMITS if (value := arguments.get(name)) is not None]
    if max_tokens is None or (own and min(own) <= max_tokens):
        return dict(arguments)
    name = next((name for name in _LIMITS if name in arguments), field)
    return {**{k: v for k, v in arguments.items() if k not in _LIMITS}, name: max_tokens}


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages that JSON carries: lone surrogates, which UTF-8 lacks, become "?"."""
    return [
        {**message, "content": replace_surrogates(content) if isinstance(content, str) else content}
        for message in messages
        for content in [message["content"]]
    ]
