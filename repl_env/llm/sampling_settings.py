"""How an answer is sampled: a user's settings, sorted by where in a request they go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from repl_env.common.json_values import replace_surrogates
from repl_env.interfaces import Message

# Settings that are not the user's to make, with the reason.
_OURS = {
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
    """Arguments that a library's call knows, and what goes into the request's body beside them.

    Raises:
        TypeError, ValueError: naming what may not be there.
    """
    if not isinstance(sampling, Mapping):
        raise TypeError(f"sampling must be a mapping, not {type(sampling).__name__}")
    for name in sampling:
        if name in _OURS:
            raise ValueError(f"sampling[{name!r}] is not for sampling: {_OURS[name]}")
    extra = sampling.get("extra_body") or {}
    if not isinstance(extra, Mapping):
        raise TypeError(f"sampling['extra_body'] must be a mapping, not {type(extra).__name__}")
    rest = {name: value for name, value in sampling.items() if name != "extra_body"}
    arguments = {name: value for name, value in rest.items() if name in known}
    unknown = {name: value for name, value in rest.items() if name not in known}
    return arguments, {**unknown, **extra}


def bound(arguments: Mapping[str, Any], most: int | None, field: str) -> dict[str, Any]:
    """`arguments` with the answer limited to `most` tokens, or less if they say so themselves."""
    own = [value for name in _LIMITS if (value := arguments.get(name)) is not None]
    if most is None or (own and min(own) <= most):
        return dict(arguments)
    name = next((name for name in _LIMITS if name in arguments), field)
    return {**{k: v for k, v in arguments.items() if k not in _LIMITS}, name: most}


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages that JSON carries: halves of surrogate pairs, which UTF-8 has not, become "?"."""
    return [
        {**message, "content": replace_surrogates(content) if isinstance(content, str) else content}
        for message in messages
        for content in [message["content"]]
    ]
