"""Conversations in a tensordict: a row's query as messages, and messages as a `History`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tensordict import NonTensorData, TensorDictBase, lazy_stack
from torchrl.data.llm import History

from repl_env.integrations.torchrl.data.dataset_columns import plain
from repl_env.integrations.torchrl.data.history_rows import PADDING, rows_of

Message: TypeAlias = dict[str, Any]

_FIELDS = frozenset({"role", "content", "is_complete", "tool_calls", "tool_responses"})


class ChatConversation(History):
    """A `History` that can be extended where the rows of a batch differ in their messages.

    TorchRL's wrappers of models extend a prompt by a response, which a plain `History` refuses for
    such a batch.
    """

    def extend(self, history: Any, *, inplace: bool = True, dim: int = 0) -> Any:
        """The conversation with the messages of `history` behind it, as `History.extend`."""
        if inplace or self.ndim < 2 or dim not in (-1, self.ndim - 1):
            return super().extend(history, inplace=inplace, dim=dim)
        rows = zip(self.unbind(0), history.unbind(0), strict=True)
        return lazy_stack([row.extend(new, inplace=False, dim=-1) for row, new in rows])


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
    rows = rows_of(tensordict, tensordict.batch_dims)
    values_by_row = {number: _value(rows[number].get(key, None)) for number in numbers}
    # A list of messages over a batch of the same length is one conversation, except where each
    # message is a user's, because a conversation does not consist of these.
    entries = [each for each in values_by_row.values() if _is_message(each)]
    if len(entries) == len(rows) > 1 and any(each["role"] != role for each in entries):
        values_by_row = dict.fromkeys(numbers, entries)
    return {number: _checked(each, role, key, number) for number, each in values_by_row.items()}


def history_of(messages: Sequence[Message]) -> Any:
    """A `History` of one conversation."""
    return lazy_stack(entries_of(messages))


def entries_of(messages: Sequence[Message]) -> list[Any]:
    """Each message as a `History` without dimensions, of which `lazy_stack` makes a conversation.

    To make one takes long beside all else of a step, and so those of a prompt are kept.
    """
    return [ChatConversation(**message) for message in messages]


def messages_of(history: Any) -> list[Message]:
    """The messages of one conversation, without those that fill it up."""
    flat = history.reshape(-1) if history.ndim != 1 else history
    found = [
        {name: entries for name, value in each.items() if (entries := plain(value)) is not None}
        for each in flat.unbind(0)
    ]
    return [message for message in found if message.get("role") not in (None, PADDING)]


def _value(entry: Any) -> Any:
    value = entry.data if isinstance(entry, NonTensorData) else entry
    return value if isinstance(value, History) else plain(entry)


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
    for index, message in enumerate(value):
        _check_message(message, f"{key} of row {number}, message {index}")
    return [dict(message) for message in value]


def _check_message(message: object, entries: str) -> None:
    if not (isinstance(message, Mapping) and "role" in message and "content" in message):
        raise TypeError(f"{entries}: must be a dict with role and content, not {message!r:.80}")
    for name in ("role", "content"):
        if not isinstance(message[name], str):
            raise TypeError(f"{entries}: {name} must be text, not {type(message[name]).__name__}")
    if unknown := sorted(map(str, message.keys() - _FIELDS)):
        raise TypeError(f"{entries}: a History has no {', '.join(unknown)}")
