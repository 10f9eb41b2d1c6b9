"""`EpisodeRecord`: what an episode came to, as a trace keeps it."""

from __future__ import annotations

from typing import Any, Self

import verifiers.v1 as vf
from pydantic import BaseModel, Field

from repl_env import REPLObservation, StepResult
from repl_env.common.display import set_module

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

    def add(self, result: StepResult[REPLObservation]) -> None:
        """Note a step."""
        observation, metadata = result.observation, result.metadata or {}
        self.rewards.append(float(result.reward or 0.0))
        self.task_rewards.append(float(observation.task_reward or 0.0))
        self.done = result.done
        self.final_answer = observation.final_answer
        self.error_kind = observation.error_kind
        self.stop_reason = metadata.get("stop_reason")
        self.mask = bool(metadata.get("mask"))

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
