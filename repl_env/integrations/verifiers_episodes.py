"""Episodes of verifiers: their sessions, their records, and their tasks as requests of resets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import BaseModel, Field, JsonValue, model_validator

from repl_env import (
    AsyncLocalREPLEnv,
    EpisodeAborted,
    EpisodeSummary,
    REPLEnv,
    REPLObservation,
    SandboxError,
    ServerError,
    StepResult,
)
from repl_env.common.display import set_module
from repl_env.integrations import needing
from repl_env.models import DEFAULT_MAX_ITERATIONS

with needing("verifiers: pip install 'repl-env[verifiers]'", "verifiers", "pydantic_config"):
    import verifiers.v1 as vf
    from pydantic_config import BaseConfig

# Location of the sessions of episodes: this machine, or a server of this project.

Episode: TypeAlias = AsyncLocalREPLEnv | REPLEnv

# Failures of what an episode runs on, which are nobody's in the rollout: verifiers tries again.
LOST_SESSION_ERRORS = (EpisodeAborted, SandboxError, ServerError)


@set_module("repl_env.integrations.verifiers")
class SessionConfig(BaseConfig):
    """The sessions of episodes."""

    base_url: str | None = None
    """A server of ours (`repl-env serve`); None: sessions on this machine."""
    api_key_var: str = "REPL_ENV_API_KEY"
    """The environment variable with the server's key; not set: no key is sent."""
    isolation: str = "auto"
    """How sessions on this machine are held; see `LocalREPLEnv`."""
    require: str | None = None
    """The weakest isolation that will do."""
    timeout_s: float | None = None
    """Seconds of execution for one block of code; None: the sandbox's or the server's limit."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `LocalREPLEnv` for sessions on this machine."""
        return {"isolation": self.isolation, "require": self.require}

    @asynccontextmanager
    async def environment(self) -> AsyncIterator[Episode]:
        """An environment for one episode.

        Raises:
            vf.SandboxError: what the episode runs on is not there, or got lost inside.
        """
        with infrastructure():
            if self.base_url is None:
                async with AsyncLocalREPLEnv(**self.arguments) as local:
                    yield local
            else:
                key = os.environ.get(self.api_key_var)
                async with REPLEnv(self.base_url, api_key=key) as remote:
                    yield remote


@contextmanager
def infrastructure() -> Iterator[None]:
    """Raise what an episode runs on and has lost as verifiers' `SandboxError`, which it retries."""
    try:
        yield
    except LOST_SESSION_ERRORS as error:
        raise vf.SandboxError(f"{type(error).__name__}: {error}") from error


# `EpisodeRecord`: what an episode came to, as a trace keeps it.

KEY = "repl_env"


@set_module("repl_env.integrations.verifiers")
class EpisodeRecord(BaseModel):
    """The rewards of an episode's turns, and how it ended; `trace.info["repl_env"]` has it.

    `rewards` has one number for each turn, `task_rewards` the task's part of each: the rest is
    shaping, such as the penalty for code that raises. Turns of the loop without code are no steps
    and have no number; the last one is that of the answer, or of its absence.
    """

    rewards: list[float] = Field(default_factory=list)
    task_rewards: list[float] = Field(default_factory=list)
    done: bool = False
    final_answer: str | None = None
    stop_reason: str | None = None
    error_kind: str | None = None
    """Of the last turn."""
    mask: bool = False
    """Whether a failure of the infrastructure touched the episode."""
    answer_value: JsonValue = None
    error_kinds: list[str | None] = Field(default_factory=list)
    """For each turn the kind of its failure, or None."""
    components: dict[str, float] = Field(default_factory=dict)
    """The sums of the reward components, by name."""

    def add(self, result: StepResult[REPLObservation]) -> None:
        """Note a step."""
        episode = self.episode.after(result)
        self.rewards, self.task_rewards = list(episode.rewards), list(episode.task_rewards)
        self.error_kinds, self.components = list(episode.error_kinds), dict(episode.components)
        self.final_answer, self.answer_value = episode.answer, episode.answer_value
        self.stop_reason, self.mask = episode.stop_reason, episode.masked
        self.error_kind = result.observation.error_kind
        self.done = result.done

    @property
    def episode(self) -> EpisodeSummary:
        """The facts of the episode, by the names that reward functions know."""
        return EpisodeSummary(
            answer=self.final_answer,
            answer_value=self.answer_value,
            rewards=tuple(self.rewards),
            task_rewards=tuple(self.task_rewards),
            error_kinds=tuple(self.error_kinds),
            components=self.components,
            masked=self.mask,
            stop_reason=self.stop_reason,
        )

    @property
    def task_reward(self) -> float:
        """The reward of the task."""
        return sum(self.task_rewards)

    @property
    def shaping(self) -> float:
        """The other rewards."""
        return sum(self.rewards) - sum(self.task_rewards)

    def check(self) -> None:
        """vf.SandboxError if the episode is no measure of the policy."""
        if self.mask:
            raise vf.SandboxError(f"the episode was touched by a failure of {self.error_kind!r}")

    def write(self, trace: vf.Trace) -> None:
        """Keep the record in `trace`, and the answer as the reply that tasks score."""
        trace.info[KEY] = self.model_dump(mode="json")
        if self.final_answer is not None:
            trace.root_reply = self.final_answer

    @classmethod
    def of(cls, trace: vf.Trace) -> Self:
        """The record in `trace`; that of an episode without turns, if there is none."""
        record: dict[str, Any] = trace.info.get(KEY) or {}
        return cls.model_validate(record)


# The data of one task of verifiers, the state of its episode, and the arguments of its reset.


# Without `set_module`: the tool server of each rollout imports the module that `__module__` names.
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


@set_module("repl_env.integrations.verifiers")
class REPLToolsetConfig(vf.ToolsetConfig):
    """The place of the tool server and of its sessions."""

    sessions: SessionConfig = SessionConfig()
