"""Conversations in a tensordict: from the query of a row to its messages, and back to a `History`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, lazy_stack
from torchrl.data.llm import History

Message: TypeAlias = dict[str, Any]

PADDING_ROLE = "<none>"  # of the messages that TorchRL fills ragged conversations up with
_FIELDS = frozenset({"role", "content", "is_complete", "tool_calls", "tool_responses"})


def plain(value: Any) -> Any:
    """The Python value that a tensordict holds as `value`; a `History` stays one."""
    if isinstance(value, NonTensorStack):
        return [plain(each) for each in value.tolist()]
    if isinstance(value, NonTensorData):
        return value.data
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value


def rows_of(tensordict: TensorDictBase) -> list[TensorDictBase]:
    """The rows of a batch of any number of dimensions."""
    parts = list(tensordict.unbind(0))
    if tensordict.ndim == 1:
        return parts
    return [row for part in parts for row in rows_of(part)]


def stacked(rows: Sequence[TensorDictBase], shape: Sequence[int]) -> TensorDictBase:
    """The rows as a batch of `shape`, whose prompts may differ in length."""
    if len(shape) == 1:
        return lazy_stack(list(rows), 0)
    size = len(rows) // shape[0]
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    return lazy_stack([stacked(part, shape[1:]) for part in parts], 0)


def queries(
    tensordict: TensorDictBase, key: str, numbers: Sequence[int], role: str
) -> dict[int, list[Message]]:
    """The conversations that the rows `numbers` begin with, by the number of the row.

    A query is a text, which `role` says; a `History`; or a list of messages. One conversation
    without a dimension of the batch is that of every row.

    Raises:
        KeyError: a row has no query.
        TypeError, ValueError: naming the row.
    """
    whole = tensordict.get(key, None)
    if isinstance(whole, History) and whole.ndim <= 1:
        return {number: _checked(whole, role, key, number) for number in numbers}
    rows = rows_of(tensordict)
    given = {number: plain(rows[number].get(key, None)) for number in numbers}
    # A list of messages over a batch of the same length is one conversation, except where each
    # message is a user's, because a conversation does not consist of these.
    if len(given) == len(rows) > 1 and all(_is_message(each) for each in given.values()):
        if any(each["role"] != role for each in given.values()):
            given = dict.fromkeys(numbers, list(given.values()))
    return {number: _checked(each, role, key, number) for number, each in given.items()}


def history_of(messages: Sequence[Message]) -> Any:
    """A `History` of one conversation."""
    return lazy_stack([History(**message) for message in messages])


def messages_of(history: Any) -> list[Message]:
    """The messages of one conversation, without those that fill it up."""
    flat = history.reshape(-1) if history.ndim != 1 else history
    found = [
        {name: plain(getattr(each, name, None)) for name in _FIELDS} for each in flat.unbind(0)
    ]
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in found
        if message["role"] not in (None, PADDING_ROLE)
    ]


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _checked(value: Any, role: str, key: str, number: int) -> list[Message]:
    """The messages of a query."""
    if value is None:
        raise KeyError(f"row {number} has no {key!r}")
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, History):
        value = messages_of(value)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise TypeError(f"{key} of row {number} must be text, a History or messages, not {kind}")
    if not value:
        raise ValueError(f"{key} of row {number} has no messages")
    for place, message in enumerate(value):
        _check_message(message, f"{key} of row {number}, message {place}")
    return [dict(message) for message in value]


def _check_message(message: object, told: str) -> None:
    if not (isinstance(message, Mapping) and "role" in message and "content" in message):
        raise TypeError(f"{told}: must be a dict with role and content, not {message!r:.80}")
    for name in ("role", "content"):
        if not isinstance(message[name], str):
            raise TypeError(f"{told}: {name} must be text, not {type(message[name]).__name__}")
    if unknown := sorted(map(str, message.keys() - _FIELDS)):
        raise TypeError(f"{told}: a History has no {', '.join(unknown)}")
