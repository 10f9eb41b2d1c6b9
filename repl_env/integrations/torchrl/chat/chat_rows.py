"""The rows of a chat environment: the task that each works on, and its prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

from tensordict import NonTensorData, TensorDictBase

from repl_env.integrations.torchrl.chat.chat_history import Message
from repl_env.integrations.torchrl.chat.chat_prompts import Prompt
from repl_env.integrations.torchrl.data.dataset_columns import ARGUMENTS, LABELS, plain

TASK_COLUMNS = (*ARGUMENTS, *LABELS)
# Columns that tell tasks of one query apart.
_TELLING = ("context", "contexts", "files", "task_prompt", "expected_answer")
_NOT_OF_A_TASK = frozenset(
    {"done", "terminated", "truncated", "reward", "task_reward", "masked", "next"}
    | {"_reset", "_step", "history", "text", "tokens", "masks", "log_probs"}
)


@dataclass(frozen=True, slots=True)
class RowTask:
    """The task of a row: its conversation, the columns of its episode, and all other columns."""

    conversation: list[Message]
    columns: Mapping[str, Any]
    others: TensorDictBase

    @classmethod
    def of(cls, conversation: list[Message], row: TensorDictBase) -> Self:
        """The task in a row of a tensordict."""
        columns = {name: plain(row.get(name, None)) for name in TASK_COLUMNS}
        if columns["task_id"] is None:
            content = conversation[0]["content"] if len(conversation) == 1 else conversation
            columns["task_id"] = task_id(content, columns)
        return cls(conversation, columns, row.exclude(*_NOT_OF_A_TASK, *TASK_COLUMNS))

    def entries(self) -> TensorDictBase:
        """The task as entries of a row's tensordict."""
        columns = {name: NonTensorData(value) for name, value in self.columns.items()}
        return self.others.copy().update(columns)

    def request(self) -> dict[str, Any]:
        """The arguments of the episode's reset."""
        given = {name: self.columns[name] for name in ARGUMENTS}
        arguments = {"task_prompt": self.conversation[-1]["content"]}
        return arguments | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A row: its prompt and task.

    `beyond_window`: the prompt does not fit, and the episode is cut off. `replaced`: the prompt of
    an episode that went on when a reset without a mask began this one.
    """

    prompt: Prompt
    task: RowTask = field(repr=False)
    beyond_window: bool = False
    replaced: Prompt | None = field(default=None, repr=False)


def with_task_id(row: Mapping[str, Any], data_key: str) -> dict[str, Any]:
    """A row of a data set, with a task id."""
    if row.get("task_id") is not None:
        return dict(row)
    columns = {name: plain(row.get(name)) for name in _TELLING}
    return {**row, "task_id": task_id(plain(row.get(data_key)), columns)}


def task_id(query: object, columns: Mapping[str, Any]) -> str:
    """A name for a task, the same for equal tasks in each process."""
    digest = blake2b(digest_size=8)
    for part in (query, *(columns[name] for name in _TELLING)):
        if not isinstance(part, (str, bytes)):
            part = json.dumps(part, sort_keys=True, default=repr)
        digest.update(part.encode("utf-8", "replace") if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()
