"""Tasks of verifiers over episodes: their rewards, and the dataset they are read from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import verifiers.v1 as vf
from pydantic import Field

from repl_env.common.display import set_module
from repl_env.integrations.verifiers.record import EpisodeRecord
from repl_env.integrations.verifiers.task_request import REPLData, REPLState
from repl_env.integrations.verifiers.toolset_config import REPLToolsetConfig
from repl_env.models import DEFAULT_MAX_ITERATIONS


@set_module("repl_env.integrations.verifiers")
class REPLTaskConfig(vf.TaskConfig):
    """How tasks are played."""

    tools: bool = False
    """Serve the session as tools, `repl_python` and `repl_submit`, to a harness with tools."""
    toolset: REPLToolsetConfig = REPLToolsetConfig()


@set_module("repl_env.integrations.verifiers")
class REPLTask(vf.Task[REPLData, REPLState, REPLTaskConfig]):
    """A task whose rewards are those of its episode, whoever played it."""

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Keep what the tool server told of the episode.

        Raises:
            vf.SandboxError: the episode is no measure of the policy.
        """
        if self.config.tools:
            trace.state.episode.write(trace)
            trace.state.episode.check()

    @vf.reward
    async def task_reward(self, trace: vf.Trace) -> float:
        """Return the reward of the task: 1.0 for the expected answer, by the default rubric."""
        return EpisodeRecord.of(trace).task_reward

    @vf.reward
    async def shaping(self, trace: vf.Trace) -> float:
        """Return the other rewards, as for code that raises, or for no answer."""
        return EpisodeRecord.of(trace).shaping

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """The length of the episode, and whether it ended by an answer."""
        record = EpisodeRecord.of(trace)
        return {
            "repl_steps": float(len(record.rewards)),
            "repl_answered": float(record.stop_reason == "answer"),
        }

    @classmethod
    def toolsets(cls, config: REPLTaskConfig) -> list[vf.Toolset]:
        """The session as tools, if the configuration says so."""
        if not config.tools:
            return []
        from repl_env.integrations.verifiers.toolset import REPLToolset

        return [REPLToolset(config.toolset)]


@set_module("repl_env.integrations.verifiers")
class REPLTasksetConfig(vf.TasksetConfig):
    """The source of the tasks."""

    id: vf.ID = "repl-env-verifiers"
    path: Path | None = None
    """A dataset as `repl-env eval` reads it: a JSON object in each line, with "id", "question",
    "context" or "context_file", and "answer"."""
    max_iterations: int = Field(DEFAULT_MAX_ITERATIONS, ge=1)
    """Turns of each episode."""
    task: REPLTaskConfig = REPLTaskConfig()


@set_module("repl_env.integrations.verifiers")
class REPLTaskset(vf.Taskset[REPLTask, REPLTasksetConfig]):
    """The tasks of a dataset. Subclass it and override `load` for tasks of your own."""

    def load(self) -> Iterable[REPLTask]:
        """The tasks of the file, in its order."""
        from repl_env.evaluation import read_dataset

        if self.config.path is None:
            raise ValueError("the taskset has no tasks: set env.taskset.path to a dataset")
        dataset = read_dataset(self.config.path)
        for entry in dataset.entries:
            each = dataset.load(entry)
            data = REPLData(
                id=each.id,
                name=each.id,
                question=each.question,
                context=each.context,
                expected_answer=each.answer,
                max_iterations=self.config.max_iterations,
            )
            yield REPLTask(data, self.config.task)
