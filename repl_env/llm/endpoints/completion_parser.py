"""A chat completion as an endpoint sent it, whole or in pieces, read without trust.

The SDKs build their objects without checking them, so any field may be of any type or missing.
What is no answer raises; counts that cannot be right are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repl_env.common.json_values import replace_surrogates
from repl_env.errors import ModelError
from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.llm.endpoints.endpoint_errors import SecretTexts, of_body, short

# More than any model writes; a stream that does not end must not fill the host's memory. Of all
# that is kept of an answer; an id or a log-probability is as much as some characters.
_LONGEST_TEXT = 64 * 1024 * 1024
_TOKEN = 8
_LONGEST_WORD = 200  # of the name of a model, or of a reason
# What every JSON parser reads exactly (RFC 8259, 6); a count above it is not one.
_LARGEST_COUNT = 2**53
_COUNT_DIGITS = len(str(_LARGEST_COUNT))
_TOKEN_ID = "token_id:"  # how vLLM spells a token with `return_tokens_as_token_ids`


@dataclass(slots=True)
class ParsedCompletion:
    """What has come of one answer so far."""

    secrets: SecretTexts = field(repr=False)
    texts: list[str] = field(default_factory=list)
    size: int = 0
    kept: int = 0
    refusal: str = ""
    called_tools: bool = False
    finish_reason: str | None = None
    model: str | None = None
    usage: ModelUsage = field(default_factory=ModelUsage)
    prompt_ids: tuple[int, ...] = ()
    output_ids: list[int] = field(default_factory=list)
    named_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, body: object, part: Literal["message", "delta"]) -> None:
        """Take in a whole completion ("message") or one event of a stream ("delta").

        Raises:
            ModelError: it is none, or tells of a failure.
        """
        if error := _get(body, "error"):
            raise of_body(error, self.secrets)
        choices = _get(body, "choices")
        if not isinstance(choices, list) or (part == "message" and not choices):
            raise ModelError("server", "the endpoint sent no completion", retryable=True)
        if isinstance(model := _get(body, "model"), str):
            self.model = replace_surrogates(model[:_LONGEST_WORD])
        if (usage := _get(body, "usage")) is not None:
            self.usage = _usage(usage)
        self.prompt_ids = _ids(_get(body, "prompt_token_ids")) or self.prompt_ids
        if choices:
            self._add_choice(choices[0], part)

    def _add_choice(self, choice: object, part: str) -> None:
        if error := _get(choice, "error"):
            raise of_body(error, self.secrets)
        if isinstance(reason := _get(choice, "finish_reason"), str):
            self.finish_reason = replace_surrogates(reason[:_LONGEST_WORD])
        message = _get(choice, part)
        self._add_text(_get(message, "content"))
        if isinstance(refusal := _get(message, "refusal"), str):
            self._keep(len(refusal))
            self.refusal += refusal
        if _get(message, "tool_calls") or _get(message, "function_call"):
            self.called_tools = True
        self._add_tokens(choice)

    def _add_text(self, content: object) -> None:
        if isinstance(content, list):  # some endpoints send parts, thinking among them
            content = "".join(t for p in content if isinstance(t := _get(p, "text"), str))
        if content is None:
            return
        if not isinstance(content, str):
            raise ModelError("type", f"the answer is {type(content).__name__}, not text")
        self._keep(len(content))
        self.texts.append(content)
        self.size += len(content)

    def _keep(self, count: int) -> None:
        self.kept += count
        if self.kept > _LONGEST_TEXT:
            raise ModelError("server", f"the answer is longer than {_LONGEST_TEXT} characters")

    def _add_tokens(self, choice: object) -> None:
        """Ids as vLLM and SGLang send them beside the message, log-probabilities as OpenAI does."""
        self.prompt_ids = _ids(_get(choice, "prompt_token_ids")) or self.prompt_ids
        ids, entries = _ids(_get(choice, "token_ids")), _get(_get(choice, "logprobs"), "content")
        entries = entries if isinstance(entries, list) else []
        self._keep(_TOKEN * (len(ids) + len(entries)))
        self.output_ids += ids
        for entry in entries:
            token, logprob = _get(entry, "token"), _get(entry, "logprob")
            if isinstance(logprob, (int, float)) and -_LARGEST_COUNT <= logprob <= _LARGEST_COUNT:
                self.logprobs.append(float(logprob))
            if isinstance(token, str) and token.startswith(_TOKEN_ID):
                self.named_ids += _named(token[len(_TOKEN_ID) :])

    def completion(self, asked: str | None, *, tokens: bool) -> Completion:
        """The answer, once all of it has come. `tokens`: with what is known of its tokens.

        Raises:
            ModelError: there is no answer in what came.
        """
        usage = self.usage
        if self.refusal or (self.finish_reason == "content_filter" and not self.size):
            why = short(self.refusal, self.secrets) or "a filter withheld the answer"
            raise ModelError("refused", why, usage=usage)
        if self.finish_reason == "error":
            raise ModelError("server", "the model failed", retryable=True, usage=usage)
        if self.called_tools and not self.size:
            raise ModelError("type", "the model called tools, and none were offered", usage=usage)
        # Cut before its first word, as when all tokens went into thinking: an answer, though empty.
        if not self.texts and self.finish_reason != "length":
            raise ModelError("type", "the answer has no text", retryable=True, usage=usage)
        text = replace_surrogates("".join(self.texts))
        trace = self._trace() if tokens else None
        return Completion(text, usage, self.finish_reason, self.model or asked, trace)

    def _trace(self) -> TokenTrace | None:
        ids = self.output_ids or self.named_ids
        if not ids:
            return None
        # One for each token, or they cannot be told apart.
        logprobs = self.logprobs if len(self.logprobs) == len(ids) else []
        return TokenTrace(self.prompt_ids, tuple(ids), tuple(logprobs))


def _get(thing: object, name: str) -> Any:
    """A field of an SDK's object, or of a dictionary; None if it has none.

    Those of huggingface_hub are both, and as dictionaries they lack what it has no field for.
    """
    value = getattr(thing, name, None)
    return thing.get(name) if value is None and isinstance(thing, Mapping) else value


def _usage(usage: object) -> ModelUsage:
    cost = _get(usage, "cost")  # OpenRouter: in US dollars
    priced = isinstance(cost, (int, float)) and not isinstance(cost, bool)
    return ModelUsage(
        _count(_get(usage, "prompt_tokens")),
        _count(_get(usage, "completion_tokens")),
        float(cost) if priced and 0 <= cost <= _LARGEST_COUNT else None,
    )


def _count(value: object) -> int | None:
    right = isinstance(value, int) and not isinstance(value, bool)
    return value if right and 0 <= value <= _LARGEST_COUNT else None  # type: ignore[operator,return-value]


def _named(text: str) -> list[int]:
    """The id that `text` spells; Python reads no number of thousands of digits."""
    return [int(text)] if text.isdecimal() and len(text) <= _COUNT_DIGITS else []


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(value) if all(_count(item) is not None for item in value) else ()
