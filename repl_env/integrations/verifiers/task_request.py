"""The data of one task of verifiers, the state of its episode, and the arguments of its reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import Field, JsonValue, model_validator

from repl_env.common.display import set_module
from repl_env.integrations.verifiers.record import EpisodeRecord
from repl_env.models import DEFAULT_MAX_ITERATIONS


@set_module("repl_env.integrations.verifiers")
class REPLData(vf.TaskData):
    """One question, what it is about, and the expected answer, which no session ever has.

    `question` and `prompt` are filled from each other where only one is given.
    """

    question: str = ""
    context: JsonValue = None
    context_file: Path | None = None
    """A file of this machine in place of `context`: traces have its path, and not its text."""
    contexts: dict[str, JsonValue] | None = None
    """Several, by the names of their variables."""
    files: dict[str, str] | None = None
    """Texts by paths in the session's working directory."""
    expected_answer: JsonValue = None
    answer_schema: dict[str, Any] | None = None
    max_iterations: int = Field(DEFAULT_MAX_ITERATIONS, ge=1)
    """Turns of the episode."""
    seed: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        question, prompt = data.get("question"), data.get("prompt")
        if question and "prompt" not in data:
            return {**data, "prompt": question}
        if not question and isinstance(prompt, str):
            return {**data, "question": prompt}
        return data


@set_module("repl_env.integrations.verifiers")
class REPLState(vf.State):
    """The state of the episode, as a tool server reports it."""

    episode: EpisodeRecord = Field(default_factory=EpisodeRecord)


def question_of(data: vf.TaskData) -> str:
    """The question of a task of any taskset."""
    return data.question if isinstance(data, REPLData) and data.question else data.prompt_text


def request_of(data: vf.TaskData) -> dict[str, Any]:
    """Return the arguments of a reset, which are also those of `RLM.run`, for a task."""
    if not isinstance(data, REPLData):
        return {}
    context = data.context if data.context_file is None else data.context_file
    arguments = {
        "context": context,
        "contexts": data.contexts,
        "files": data.files,
        "expected_answer": data.expected_answer,
        "answer_schema": data.answer_schema,
        "seed": data.seed,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def turns_of(data: vf.TaskData) -> int:
    """The turns that a task's episode may have."""
    return data.max_iterations if isinstance(data, REPLData) else DEFAULT_MAX_ITERATIONS
