"""Few-shot examples: conversations at the beginning of a run's prompt, as separate turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repl_env.interfaces import Message

_ROLES = ("user", "assistant")


def checked_examples(value: Any) -> tuple[tuple[Message, ...], ...]:
    """Return the conversations in `value`, each without its system message.

    A conversation is a list of messages, as in `RLMRunResult.messages`: user and assistant
    alternate, and
    the assistant has the last message. `value` is a list of conversations, or a single one.

    Raises:
        TypeError, ValueError: naming the message in `examples`.
    """
    if not _is_list(value):
        raise TypeError(f"examples must be a list of conversations, not {type(value).__name__}")
    alone = bool(value) and isinstance(value[0], Mapping)
    conversations = [value] if alone else value
    return tuple(
        _conversation(messages, "examples" if alone else f"examples[{number}]")
        for number, messages in enumerate(conversations)
    )


def _conversation(value: Any, name: str) -> tuple[Message, ...]:
    if not _is_list(value):
        raise TypeError(f"{name} must be a list of messages, not {type(value).__name__}")
    messages = [_message(each, f"{name}[{place}]") for place, each in enumerate(value)]
    system = bool(messages) and messages[0]["role"] == "system"
    turns = messages[system:]
    for place, message in enumerate(turns):
        if message["role"] != _ROLES[place % 2]:
            problem = f"must be the {_ROLES[place % 2]}'s, not the {message['role']}'s"
            raise ValueError(f"{name}[{place + system}] {problem}: the two take turns")
    if not turns or len(turns) % 2:
        raise ValueError(f"{name} must end with a message of the assistant's")
    return tuple(turns)


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
        raise TypeError(f"{name} must be a message: a dict with 'role' and 'content'")
    if not isinstance(value["content"], str):
        raise TypeError(f"{name}['content'] must be a str, not {type(value['content']).__name__}")
    return {"role": str(value["role"]), "content": value["content"]}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
