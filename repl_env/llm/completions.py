"""Replies of endpoints: completions parsed, failures as errors without secrets."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from repl_env.common.values import MAX_DEPTH, replace_surrogates, visible
from repl_env.errors import ModelError
from repl_env.llm.base import Completion, ModelUsage, TokenTrace

# Errors for an endpoint's failures, without secrets.
#
# Endpoints repeat keys in their messages, and libraries put requests with all headers into their
# exceptions. So messages are composed from the useful parts, with secrets removed.

# Status → kind, and whether the same request may succeed later.
_BY_STATUS: dict[int, tuple[str, bool]] = {
    401: ("authentication", False),  # no key, or a wrong one
    402: ("rate_limit", False),  # the account has no money left: waiting does not help
    403: ("authentication", False),  # the key lacks this permission
    404: ("not_found", False),  # no such endpoint, or no such model
    407: ("authentication", False),  # of a proxy
    408: ("timeout", True),  # the endpoint timed out
    409: ("server", True),  # a lock inside the endpoint, which the SDKs retry too; too early
    425: ("server", True),  # too early
    429: ("rate_limit", True),
}
# OpenAI's codes, used by other endpoints too, are more specific than their status.
_BY_CODE: dict[str, tuple[str, bool]] = {
    "insufficient_quota": ("rate_limit", False),  # 429, but waiting does not help
    "content_filter": ("refused", False),  # 400 of a filter before the model
}
# Not followed: the question, and headers with keys, would go to an unintended host, and a server
# would send requests wherever a stranger's endpoint points.
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LONGEST = 300  # characters of the endpoint's own message
_SHORTEST_SECRET = 6  # removing "1" or "true" would only garble the text
_CUT_OUT = "[secret]"
_DEEPEST = 8  # nested errors, as gateways before gateways send them


# Names of headers whose values are keys; others, such as a title, are words that replies may have.
_OF_KEYS = re.compile(r"auth|key|token|secret|cookie|password|credential", re.IGNORECASE)
# First words of credentials in a header, which say how the rest is to be read (RFC 9110, 11.1).
_SCHEMES = frozenset({"basic", "bearer", "digest", "negotiate", "apikey", "api-key", "token"})


class SecretTexts:
    """Texts that no message may hold: a key, the values of headers, a login inside a URL."""

    def __init__(
        self, key: str | None, headers: Mapping[str, str], base_url: str | None = None
    ) -> None:
        self._parts: list[str] = []
        self._keys: list[str] = []
        self.learn(key, headers, base_url)

    def __repr__(self) -> str:
        return "Secrets()"

    def learn(
        self, key: str | None, headers: Mapping[str, str], base_url: str | None = None
    ) -> None:
        """Add further secrets."""
        url = urlsplit(base_url or "")
        secrets = [key, url.username, url.password, *headers.values()]
        self._parts = _longest_first(self._parts, secrets)
        values = [value for name, value in headers.items() if _OF_KEYS.search(name)]
        keys = _longest_first(self._keys, [key, url.password, *values])
        self._keys = [part for part in keys if part.lower() not in _SCHEMES]

    def cut(self, text: str) -> str:
        """Return `text` without the secrets."""
        for part in self._parts:
            text = text.replace(part, _CUT_OUT)
        return text

    def cut_keys(self, text: str) -> str:
        """Return the text of a reply without keys and passwords, which an endpoint may repeat.

        Values of other headers stay: a title or a language is a word like others.
        """
        for part in self._keys:
            text = text.replace(part, _CUT_OUT)
        return text

    def cut_all(self, value: Any, deepest: int = MAX_DEPTH) -> Any:
        """Return a JSON value without the secrets; deeply nested parts are left out."""
        if isinstance(value, str):
            return self.cut(value)
        if not isinstance(value, (dict, list)):
            return value
        if not deepest:
            return None
        if isinstance(value, list):
            return [self.cut_all(each, deepest - 1) for each in value]
        return {self.cut(name): self.cut_all(each, deepest - 1) for name, each in value.items()}


def _longest_first(known: Iterable[str], secrets: Iterable[str | None]) -> list[str]:
    """Return `known` and the secrets with their words, each long enough to be cut out."""
    parts = {part for text in secrets if text for part in (text, *text.split())}
    long = {part for part in parts if len(part) >= _SHORTEST_SECRET}
    return sorted(long.union(known), key=len, reverse=True)


def of_status(
    status: int, body: object, headers: Mapping[str, str], secrets: SecretTexts
) -> ModelError:
    """Return the error for an HTTP status, with details from the body."""
    code, text = _code_and_text(body)
    kind, retryable = _BY_STATUS.get(status, ("server" if status >= 500 else "request", False))
    if status >= 500:
        retryable = True
    if code in _BY_CODE:
        kind, retryable = _BY_CODE[code]
    if status in _REDIRECTS:
        kind = "not_found"
        text = f"the endpoint redirects to {headers.get('location', '?')}, which is not followed"
    message = f"status {status}" + (f": {short(text, secrets)}" if text else "")
    return ModelError(kind, message, retryable=retryable, retry_after=_retry_after(headers))


def of_body(error: object, secrets: SecretTexts) -> ModelError:
    """Return the error in a body, or in a stream, after status 200."""
    code, text = _code_and_text(error)
    if code.isdecimal() and len(code) == 3 and 400 <= int(code) < 600:
        return of_status(int(code), error, {}, secrets)
    kind, retryable = _BY_CODE.get(code, ("server", True))
    return ModelError(
        kind, short(text or "an error without a message", secrets), retryable=retryable
    )


def bare(failure: ModelError) -> ModelError:
    """Return `failure` without its cause, which tracebacks print; to be raised outside `except`."""
    failure.__context__ = failure.__cause__ = None
    return failure


def short(text: str, secrets: SecretTexts) -> str:
    """Return one bounded line of `text`; nothing of an HTML page."""
    if re.match(r"\s*<(!doctype|html|\?xml)", text, re.IGNORECASE):
        return "a page of HTML"
    # Secrets are removed before the text is cut: half a key is a secret too.
    line = visible(" ".join(secrets.cut(text).split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _code_and_text(body: object) -> tuple[str, str]:
    """Return the code and the message in the body of an error; "" for each that is missing."""
    for _ in range(_DEEPEST):
        if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
            body = body["error"]
    if isinstance(body, str):
        return "", body
    if not isinstance(body, Mapping):
        return "", ""
    texts: Iterable[object] = (body.get(name) for name in ("message", "detail"))
    text = next((text for text in texts if isinstance(text, str)), "")
    code = body.get("code")
    return (str(code) if isinstance(code, (str, int)) else ""), text


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in `Retry-After-Ms` or either form of `Retry-After` (RFC 9110, 10.2.3)."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value)
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return math.nan


# Parses an endpoint's chat completion, whole or streamed, without trusting it.
#
# The SDKs build their objects without validation, so any field may have any type or be missing.
# An invalid answer raises; impossible counts are None.

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
        if message is None and part == "message":
            raise ModelError("server", "the endpoint sent no completion", retryable=True)
        self._add_text(_get(message, "content"))
        if isinstance(refusal := _get(message, "refusal"), str):
            self._count_buffered(len(refusal))
            self.refusal += refusal
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
        """Return the complete answer, without keys. `tokens`: with its token trace.

        Content that is null is an empty text: the model has only reasoned, or has called tools that
        nobody offered.

        Raises:
            ModelError: no answer was received.
        """
        usage = self.usage
        if self.refusal or (self.finish_reason == "content_filter" and not self.size):
            reason = short(self.refusal, self.secrets) or "a filter withheld the answer"
            raise ModelError("refused", reason, usage=usage)
        if self.finish_reason == "error":
            raise ModelError("server", "the model failed", retryable=True, usage=usage)
        received = "".join(self.texts)
        text = self.secrets.cut_keys(received)
        # Token ids would spell a key that was taken out of the text.
        trace = self._trace() if tokens and text == received else None
        finish, model = map(self._without_keys, (self.finish_reason, self.model))
        return Completion(replace_surrogates(text), usage, finish, model or requested_model, trace)

    def _without_keys(self, word: str | None) -> str | None:
        return None if word is None else self.secrets.cut_keys(word)

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
