"""The rows of a chat environment: the task that each works on, and how far its episode is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from repl_env.integrations.torchrl.messages import Message, plain
from repl_env.integrations.torchrl.prompts import Prompt
from repl_env.rows import RowResult

# The columns of a row that its episode is made of.
REQUEST_COLUMNS = ("context", "expected_answer", "task_prompt")
TASK_COLUMNS = (*REQUEST_COLUMNS, "task_id")
FLAGS = ("done", "terminated", "truncated")
_NOT_OF_A_TASK = frozenset(
    {*FLAGS, "reward", "masked", "next", "_reset", "_step"}
    | {"history", "text", "tokens", "masks", "log_probs"}
)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a row: its conversation, the columns of its episode, and all other columns."""

    conversation: list[Message]
    columns: Mapping[str, Any]
    others: TensorDictBase

    @classmethod
    def of(cls, conversation: list[Message], row: TensorDictBase) -> Self:
        """The task in a row of a tensordict."""
        columns = {name: plain(row.get(name, None)) for name in TASK_COLUMNS}
        if columns["task_id"] is None:
            query = conversation[0]["content"] if len(conversation) == 1 else conversation
            columns["task_id"] = task_id(query, columns)
        return cls(conversation, columns, row.exclude(*_NOT_OF_A_TASK, *TASK_COLUMNS))

    def request(self) -> dict[str, Any]:
        """The arguments of the episode's reset."""
        given = {
            name: self.columns[name]
            for name in REQUEST_COLUMNS
            if self.columns[name] is not None
        }
        return {"task_prompt": self.conversation[-1]["content"], **given}


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its prompt and task, and the end of its last step."""

    prompt: Prompt
    task: Task = field(repr=False)
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    masked: bool = False

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated

    def after(self, result: RowResult, window_full: bool = False) -> Row:
        """The row after a reset or a step; it is truncated if the next prompt does not fit."""
        return replace(
            self,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated or (window_full and not result.terminated),
            masked=result.mask,
        )

    def as_reset(self) -> TensorDictBase:
        """What a reset gives."""
        columns = {name: NonTensorData(value) for name, value in self.task.columns.items()}
        return self.task.others.copy().update({**columns, **self._seen()})

    def as_step(self) -> TensorDictBase:
        """What a step gives."""
        return TensorDict({**self._seen(), "reward": torch.tensor([self.reward])})

    def _seen(self) -> dict[str, Any]:
        flags = {name: getattr(self, name) for name in (*FLAGS, "masked")}
        prompt = {key: container.clone() for key, container in self.prompt.items()}
        return {**prompt, **{name: torch.tensor([flag]) for name, flag in flags.items()}}


def with_task_id(row: Mapping[str, Any], data_key: str) -> dict[str, Any]:
    """A row of a data set, with a task id."""
    if row.get("task_id") is not None:
        return dict(row)
    columns = {name: plain(row.get(name)) for name in REQUEST_COLUMNS}
    return {**row, "task_id": task_id(plain(row.get(data_key)), columns)}


def task_id(query: object, columns: Mapping[str, Any]) -> str:
    """A name for a task, the same for equal tasks in each process."""
    digest = blake2b(digest_size=8)
    for part in (query, *(columns.get(name) for name in REQUEST_COLUMNS)):
        if not isinstance(part, (str, bytes)):
            part = json.dumps(part, sort_keys=True, default=repr)
        digest.update(part.encode("utf-8", "replace") if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()
