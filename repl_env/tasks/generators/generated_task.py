"""`GeneratedTask`: a question about a long context, and its one right answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repl_env.common.set_module import set_module

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

MIN_SIZE = 1_000  # below, a context has no room for its question's subject and something beside it
MAX_SIZE = 1_000_000_000  # characters; a task is made, and given to a session, in memory


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A generated task.

    Attributes:
        id: kind, size and seed, from which the task can be made again.
        answer: the right answer as JSON; `answer_text` is the same as text.
        size: the characters asked for; the context has at most these, and less by under one line.
        rubric: how an answer is compared: "exact" or "list" (`repl_env.evaluation`).
    """

    id: str
    kind: str
    question: str
    context: str
    answer: JSON
    size: int
    seed: int
    rubric: str

    @property
    def answer_text(self) -> str:
        """The right answer as it would be written."""
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that trajectories and samples carry."""
        return {"name": self.id, "group": self.kind}

    def record(self) -> dict[str, Any]:
        """The task as a line of a dataset has it."""
        return {
            "id": self.id,
            "question": self.question,
            "context": self.context,
            "answer": self.answer,
            "rubric": self.rubric,
            "metadata": {"kind": self.kind, "size": self.size, "seed": self.seed},
        }
