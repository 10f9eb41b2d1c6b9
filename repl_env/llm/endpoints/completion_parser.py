"""Parses an endpoint's chat completion, whole or streamed, without trusting it.

The SDKs build their objects without validation, so any field may have any type or be missing. An
invalid answer raises; impossible counts are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repl_env.common.json_values import replace_surrogates
from repl_env.errors import ModelError
from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.llm.endpoints.endpoint_errors import SecretTexts, of_body, short

# More than any model writes; an endless stream must not fill the host's memory. For all parts of an
# answer; an id or a log-probability counts as some characters.
_LONGEST_TEXT = 64 * 1024 * 1024
_TOKEN = 8
_LONGEST_WORD = 200  # of the name of a model, or of a reason
# The largest integer that every JSON parser reads exactly (RFC 8259, 6); larger counts are invalid.
_LARGEST_COUNT = 2**53
_COUNT_DIGITS = len(str(_LARGEST_COUNT))
_TOKEN_ID = "token_id:"  # vLLM's spelling of a token with `return_tokens_as_token_ids`


@dataclass(slots=True)
class ParsedCompletion:
    """The received part of one answer."""

    secrets: SecretTexts = field(repr=False)
    texts: list[str] = field(default_factory=list)
    size: int = 0
    buffered: int = 0
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
        """Add a whole completion ("message") or one event of a stream ("delta").

        Raises:
            ModelError: it is invalid, or reports a failure.
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
            self._count_buffered(len(refusal))
            self.refusal += refusal
        if _get(message, "tool_calls") or _get(message, "function_call"):
            self.called_tools = True
        self._add_tokens(choice)

    def _add_text(self, content: object) -> None:
        if isinstance(content, list):  # some endpoints send parts, including reasoning
            content = "".join(t for p in content if isinstance(t := _get(p, "text"), str))
        if content is None:
            return
        if not isinstance(content, str):
            raise ModelError("type", f"the answer is {type(content).__name__}, not text")
        self._count_buffered(len(content))
        self.texts.append(content)
        self.size += len(content)

    def _count_buffered(self, count: int) -> None:
        self.buffered += count
        if self.buffered > _LONGEST_TEXT:
            raise ModelError("server", f"the answer is longer than {_LONGEST_TEXT} characters")

    def _add_tokens(self, choice: object) -> None:
        """Add token ids, which vLLM and SGLang send next to the message, and OpenAI's
        log-probabilities.
        """
        self.prompt_ids = _ids(_get(choice, "prompt_token_ids")) or self.prompt_ids
        ids, entries = _ids(_get(choice, "token_ids")), _get(_get(choice, "logprobs"), "content")
        entries = entries if isinstance(entries, list) else []
        self._count_buffered(_TOKEN * (len(ids) + len(entries)))
        self.output_ids += ids
        for entry in entries:
            token, logprob = _get(entry, "token"), _get(entry, "logprob")
            if isinstance(logprob, (int, float)) and -_LARGEST_COUNT <= logprob <= _LARGEST_COUNT:
                self.logprobs.append(float(logprob))
            if isinstance(token, str) and token.startswith(_TOKEN_ID):
                self.named_ids += _named(token[len(_TOKEN_ID) :])

    def completion(self, requested_model: str | None, *, tokens: bool) -> Completion:
        """Return the complete answer. `tokens`: with its token trace.

        Raises:
            ModelError: no answer was received.
        """
        usage = self.usage
        if self.refusal or (self.finish_reason == "content_filter" and not self.size):
            reason = short(self.refusal, self.secrets) or "a filter withheld the answer"
            raise ModelError("refused", reason, usage=usage)
        if self.finish_reason == "error":
            raise ModelError("server", "the model failed", retryable=True, usage=usage)
        if self.called_tools and not self.size:
            raise ModelError("type", "the model called tools, and none were offered", usage=usage)
        # Cut before its first word, for example when reasoning took all tokens: an empty answer.
        if not self.texts and self.finish_reason != "length":
            raise ModelError("type", "the answer has no text", retryable=True, usage=usage)
        text = replace_surrogates("".join(self.texts))
        trace = self._trace() if tokens else None
        return Completion(text, usage, self.finish_reason, self.model or requested_model, trace)

    def _trace(self) -> TokenTrace | None:
        ids = self.output_ids or self.named_ids
        if not ids:
            return None
        # One for each token, otherwise they cannot be assigned.
        logprobs = self.logprobs if len(self.logprobs) == len(ids) else []
        return TokenTrace(self.prompt_ids, tuple(ids), tuple(logprobs))


def _get(thing: object, name: str) -> Any:
    """Return a field of an SDK's object, or of a dictionary; None if it is missing.

    Objects of huggingface_hub are both, and as dictionaries they lack undeclared fields.
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
    """Return the id that `text` spells; Python refuses numbers of thousands of digits."""
    return [int(text)] if text.isdecimal() and len(text) <= _COUNT_DIGITS else []


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(value) if all(_count(item) is not None for item in value) else ()
