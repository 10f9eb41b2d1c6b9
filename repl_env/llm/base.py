"""The interface of a language model: it answers a list of chat messages.

Users may pass any function as a model (`as_model`). Endpoints, local models and scripts are classes
with token counts, a limit on the answer, and sampling. Nothing here depends on a provider.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from repl_env.common.closeable import AsyncCloseable
from repl_env.common.json_values import replace_surrogates
from repl_env.common.set_module import set_module
from repl_env.concurrency.background_loop import RUNS
from repl_env.concurrency.user_functions import accepts, call_user_function, check_takes
from repl_env.errors import ModelError
from repl_env.interfaces import Message

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


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a request in a tree of runs: for scripts and replays, never sent to an endpoint.

    `run` is the path of the run ("0" is the root, "0.3" the child that its third call made);
    `number`
    counts that run's turns, or its calls if `purpose` is "query" or "repair".
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
            the
            answer.
        prefix: the beginning of the answer, which the model continues. The text of the completion
            is
            the rest, or all of it. A model without this feature sees the assistant's last message.
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
    with
    `await model.close()`. A run leaves a given model open.

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
