"""Conversations of a batch, whose rows need not be equally long: read at the end, and extended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensordict import lazy_stack
from torchrl.data.llm import History

PADDING = "<none>"  # the role of a message that TorchRL fills up a batch with


def rows_of(batch: Any, dims: int) -> list[Any]:
    """The rows of a tensordict or a tensorclass with `dims` dimensions of batch, in order."""
    if dims == 0:
        return [batch]
    return [row for part in batch.unbind(0) for row in rows_of(part, dims - 1)]


def last_reply(conversation: History, role: str | None) -> str:
    """The text of the last message that is no padding, if it is of this role, else "".

    A reply that began another turn, as one with `<|im_start|>user` in it does, is none.
    """
    for index in range(len(conversation) - 1, -1, -1):
        message = conversation[index]
        if message.role != PADDING:
            return _text(message.content) if role in (None, message.role) else ""
    return ""


def with_messages(history: History, dims: int, messages: Sequence[tuple[str, str]]) -> History:
    """`history` with one more message, (role, content), at the end of each row; a new one."""
    return _extended(history, dims, iter(messages))


def _extended(history: History, dims: int, messages: Iterator[tuple[str, str]]) -> History:
    if dims > 0:
        return lazy_stack([_extended(part, dims - 1, messages) for part in history.unbind(0)])
    role, content = next(messages)
    return lazy_stack(
        [*history.unbind(0), History(role=role, content=content, device=history.device)]
    )


def _text(content: Any) -> str:
    """The text of a message, which may consist of parts; parts that are no text are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
