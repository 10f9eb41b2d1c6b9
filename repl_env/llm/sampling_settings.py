"""A user's sampling settings, sorted into arguments of a call and fields of the request body."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from repl_env.common.json_values import replace_surrogates
from repl_env.interfaces import Message

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
