"""verifiers: tasks, an environment, tools and a harness over sessions.

Needs `pip install 'repl-env[verifiers]'`. In configurations of verifiers the plugin is
called `repl-env-verifiers`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from repl_env import ModelError, REPLObservation, StepResult
from repl_env.env.rollouts import RecordedRollout, RolloutNote, RolloutRecorder
from repl_env.env.rows import action_of_reply, escaped, message_of
from repl_env.integrations import needing
from repl_env.integrations.verifiers_episodes import (
    LOST_SESSION_ERRORS,
    Episode,
    EpisodeRecord,
    REPLData,
    REPLState,
    REPLToolsetConfig,
    SessionConfig,
    infrastructure,
    question_of,
    request_of,
    turns_of,
)
from repl_env.integrations.verifiers_toolset import REPLToolset
from repl_env.models import DEFAULT_MAX_ITERATIONS
from repl_env.prompts import RLM_SYSTEM_PROMPT, RLM_SYSTEM_PROMPT_SHORT
from repl_env.rlm import RLM, Budget, ModelRequest, OpenAIModel, RequestGate, RLMRunResult
from repl_env.rlm.model_call import AnyEvent, CellRan

with needing("verifiers: pip install 'repl-env[verifiers]'", "verifiers"):
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire

__all__ = [
    "EpisodeRecord",
    "REPLData",
    "REPLHarness",
    "REPLHarnessConfig",
    "REPLState",
    "REPLTask",
    "REPLTaskConfig",
    "REPLTaskEnv",
    "REPLTaskEnvConfig",
    "REPLTaskset",
    "REPLTasksetConfig",
    "REPLToolset",
    "REPLToolsetConfig",
    "SessionConfig",
]

# Tasks of verifiers over episodes: their rewards, and the dataset they are read from.


class REPLTaskConfig(vf.TaskConfig):
    """How tasks are played."""

    tools: bool = False
    """Serve the session as tools, `repl_python` and `repl_submit`, to a harness with tools."""
    toolset: REPLToolsetConfig = REPLToolsetConfig()


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
        return [REPLToolset(config.toolset)]


class REPLTasksetConfig(vf.TasksetConfig):
    """The source of the tasks."""

    id: vf.ID = "repl-env-verifiers"
    path: Path | None = None
    """A dataset as `repl-env eval` reads it: a JSON object in each line, with "id", "question",
    "context" or "context_file", and "answer"."""
    max_iterations: int = Field(DEFAULT_MAX_ITERATIONS, ge=1)
    """Turns of each episode."""
    task: REPLTaskConfig = REPLTaskConfig()


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


# `REPLTaskEnv`: a model that writes code in fences, and sessions that run it turn by turn.


class REPLTaskEnvConfig(vf.EnvConfig):
    """The player of the tasks, and its settings."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy. Its harness is `REPLHarness` if none is named, which needs no container."""
    mode: Literal["chat", "rlm"] = "chat"
    """"chat": the environment answers each reply with what its code did. "rlm": the harness has the
    loop; `REPLHarness` runs ours, with sub-calls."""
    sessions: SessionConfig = SessionConfig()
    """Those of the mode "chat"; the harness and the toolset have their own."""
    record: Path | None = None
    """A folder for trajectory files of the rollouts of the mode "chat", for `repl-env view`."""
    record_every: int = Field(1, ge=1)
    """Of how many tasks the rollouts of the first are recorded."""

    @model_validator(mode="before")
    @classmethod
    def _harness_without_a_box(cls, data: Any) -> Any:
        """Name our harness where verifiers would take `bash`, which runs commands on this host."""
        if not isinstance(data, dict):
            return data
        taskset, agent = data.get("taskset"), data.get("agent") or {}
        named = taskset.get("id") if isinstance(taskset, dict) else getattr(taskset, "id", None)
        if isinstance(agent, vf.AgentConfig):
            agent = agent.model_dump(exclude_unset=True)
        if agent.get("harness") is None and vf.default_harness_id(named or "") == "bash":
            data = {**data, "agent": {**agent, "harness": {"id": "repl-env-verifiers"}}}
        return data


class REPLTaskEnv(vf.Env[REPLTaskEnvConfig]):
    """Plays tasks in sessions: `REPLTask`s, or those of any taskset with a prompt.

    The blocks of code of a reply run in order and are one turn. `FINAL(...)` ends the episode; a
    reply with neither is told so, and counts.
    """

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """One episode of `task`."""
        if self.config.mode == "rlm" or getattr(task.config, "tools", False):
            await agents.agent.run(task)
            return
        system = task.data.system_prompt or RLM_SYSTEM_PROMPT_SHORT
        chat = task.with_data(prompt=None, system_prompt=system)
        async with (
            self.config.sessions.environment() as episode,
            agents.agent.interaction(chat) as talk,
        ):
            with infrastructure():
                await self._play(task.data, episode, talk)

    async def _play(self, data: vf.TaskData, episode: Episode, talk: vf.Interaction) -> None:
        question, record = question_of(data), EpisodeRecord()
        result = await episode.reset(
            task_prompt=question, max_iterations=turns_of(data), **request_of(data)
        )
        next_message = _opening(question, data, result.observation.context_length)
        system = data.system_prompt or RLM_SYSTEM_PROMPT_SHORT
        prompt = [
            {"role": "system", "content": system},
            {"role": "user", "content": escaped(next_message)},
        ]
        rollout = _rollout(self.config.record, self.config.record_every, data, question, prompt)
        if rollout is not None:
            rollout.begun(result.observation)
        try:
            while not record.done:
                segment = await talk.turn(escaped(next_message))
                if segment.terminated:
                    await self._give_up(episode, record)
                    return
                reply = segment.last_reply
                result, next_message = await self._step(episode, reply, result, rollout)
                record.add(result)
                record.check()
        except LOST_SESSION_ERRORS:
            if rollout is not None:
                rollout.end(record.episode.lost())
            raise
        finally:
            record.write(talk.trace)
            if rollout is not None:
                await asyncio.to_thread(rollout.end, record.episode)

    async def _step(
        self,
        episode: Episode,
        reply: str,
        last: StepResult[REPLObservation],
        rollout: RecordedRollout | None,
    ) -> tuple[StepResult[REPLObservation], str]:
        """The result of a reply, and its text for the model."""
        action, began = action_of_reply(reply, last.observation.available_variables), time.time()
        result = await episode.step(action, timeout_s=self.config.sessions.timeout_s)
        message = message_of(result.observation, action.metadata.get("note"))
        if rollout is not None:
            rollout.step(reply, action.code, message, result.observation, began=began)
        return result, message

    async def _give_up(self, episode: Episode, record: EpisodeRecord) -> None:
        """Score an episode that a limit of verifiers has ended, as one whose turns are used up."""
        if hasattr(episode, "give_up"):  # not on a server
            record.add(await episode.give_up())


def _rollout(
    record: Path | None,
    every: int,
    data: vf.TaskData,
    question: str,
    prompt: list[dict[str, Any]] | None = None,
) -> RecordedRollout | None:
    """The record of an episode. The rollouts of one task are a group, whenever they begin."""
    recorder = RolloutRecorder.of(record, every)
    if recorder is None:
        return None
    name = getattr(data, "name", None) or getattr(data, "id", None)
    facts = {} if name is None else {"task_id": str(name), "group_id": str(name)}
    return recorder.rollout({"task_prompt": question}, RolloutNote(prompt, facts))


def _opening(question: str, data: vf.TaskData, length: int) -> str:
    """The first message: what is asked, and the variables that it is about."""
    named = getattr(data, "contexts", None) or ("context",)
    about = ", ".join(f"`{name}`" for name in named)
    return f"{question}\n\n{about}: length {length:,}" if length else question


# `REPLHarness`: our recursive loop as the program that plays a seat, in this process.
#
# Every call of a model goes to the endpoint that verifiers hands out, where it is recorded. There
# is no program to install and no process to start: code that the model writes runs in a session.

_DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")
# verifiers limits the rollouts in flight itself.
_GATE = RequestGate(4096)
# Seconds for one answer. verifiers has time-outs of its own, for stages of a rollout.
_PATIENCE = 24 * 3600.0


class REPLHarnessConfig(vf.HarnessConfig):
    """How our loop works; see `repl_env.rlm.RLM`."""

    id: vf.ID = "repl-env-verifiers"
    max_iterations: int | None = Field(None, ge=1)
    """Turns of the model; None: as the task says, or 30."""
    max_depth: int = Field(2, ge=1)
    max_calls: int | None = Field(200, ge=1)
    """Calls of models, with all sub-calls."""
    blocks: Literal["all", "first", "until_done", "until_error"] = "all"
    prompts: Literal["full", "short"] = "full"
    sessions: SessionConfig = SessionConfig()
    record: Path | None = None
    """A folder for trajectory files of the loop's runs, with their sub-calls."""
    record_every: int = Field(1, ge=1)
    """Of how many tasks the runs of the first are recorded."""


class REPLHarness(vf.Harness[REPLHarnessConfig]):
    """Our loop on a task's prompt, or one answer of the bare model to a user.

    A task with a prompt is worked on by the loop: turns and sub-calls are branches of one trace,
    and the answer is the trace's `last_reply`. A user who opens the exchange, as `REPLTaskEnv`
    does, gets one answer of the model for each message.
    """

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # in the runtime
    NEEDS_CONTAINER = False

    async def setup(self, runtime: vf.Runtime) -> None:
        """Check that the endpoint will be one that this process can reach."""
        if runtime.type != "subprocess":
            raise ValueError(
                "REPLHarness works in this process and needs no box: set runtime.type to "
                f'"subprocess", not {runtime.type!r}'
            )
        if self.config.sessions.base_url is not None:
            raise ValueError(
                "sessions.base_url: the loop needs sessions on this machine, because it answers "
                'their sub-calls; on a server use the mode "chat"'
            )

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Work on the task until there is an answer."""
        cells, question = _Cells(), question_of(data)
        rollout = _rollout(self.config.record, self.config.record_every, data, question)
        try:
            async with _model(ctx, endpoint, secret) as model:
                rlm = self._rlm(model, data, cells)
                task: dict[str, Any] = {}
                if rollout is not None:
                    note = rollout.task
                    task = {"task": {"name": note.name}, "group_id": note.group_id}
                with infrastructure():
                    result = await rlm.arun(question, **task, **request_of(data))
        except ModelError as error:
            cells.record(getattr(error, "result", None)).write(trace)
            if trace.stop_condition is None:  # else a limit of verifiers has refused the call
                raise
        else:
            record = cells.record(result)
            record.write(trace)
            if trace.stop_condition is None:
                record.check()
        finally:
            if rollout is not None:
                await asyncio.to_thread(rollout.write, cells.events)
        return _DONE

    async def resume(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        messages: vf.Messages,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Have the model answer `messages`, after all that was said before."""
        earlier = trace.branches[-1].messages if trace.branches else []
        if not earlier and data.system_prompt:
            earlier = [vf.SystemMessage(content=data.system_prompt)]
        prompt: Any = [message_to_wire(message) for message in (*earlier, *messages)]
        turns = trace.num_turns
        try:
            async with _model(ctx, endpoint, secret) as model:
                await model.complete(ModelRequest(messages=prompt))
        except ModelError:
            if trace.num_turns == turns:  # else it answered, though with no text
                raise
        return _DONE

    def _rlm(self, model: OpenAIModel, data: vf.TaskData, cells: _Cells) -> RLM:
        config = self.config
        turns = turns_of(data)
        usual = RLM_SYSTEM_PROMPT if config.prompts == "full" else RLM_SYSTEM_PROMPT_SHORT
        return RLM(
            model,
            budget=Budget(calls=config.max_calls),
            max_iterations=config.max_iterations or turns,
            max_depth=config.max_depth,
            blocks=config.blocks,
            prompts=config.prompts,
            system_prompt=f"{usual}\n\n{data.system_prompt}" if data.system_prompt else None,
            on_event=cells,
            gate=_GATE,
            **config.sessions.arguments,
        )


class _Cells:
    """The rewards of the root run's cells, by turn, and all events of the tree."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self._turns: dict[int, EpisodeRecord] = {}
        self._components: dict[str, float] = {}
        self._done = False

    def __call__(self, event: AnyEvent) -> None:
        self.events.append(event)
        if not isinstance(event, CellRan) or event.run != "0":
            return
        seen, turn = event.observation, self._turns.setdefault(event.turn, EpisodeRecord())
        turn.rewards.append(float(seen.reward or 0.0))
        turn.task_rewards.append(float(seen.task_reward or 0.0))
        turn.error_kinds.append(seen.error_kind)
        for name, part in (seen.metadata.get("reward_components") or {}).items():
            self._components[name] = self._components.get(name, 0.0) + part
        self._done = seen.done

    def record(self, result: RLMRunResult | None) -> EpisodeRecord:
        """The result of the run."""
        turns = self._turns.values()
        rewards = [sum(turn.rewards) for turn in turns]
        parts = [sum(turn.task_rewards) for turn in turns]
        kinds = [next(filter(None, reversed(turn.error_kinds)), None) for turn in turns]
        facts: dict[str, Any] = {"error_kinds": kinds, "components": self._components}
        if result is None:
            return EpisodeRecord(rewards=rewards, task_rewards=parts, **facts)
        if not self._done:  # it ended by prose, or by a limit
            rewards.append(float(result.reward or 0.0))
            parts.append(float(result.task_reward or 0.0))
            kinds.append(None)
        return EpisodeRecord(
            rewards=rewards,
            task_rewards=parts,
            answer_value=result.answer_value,
            **facts,
            done=result.ended == "terminated",
            final_answer=result.final_answer,
            stop_reason=result.stop_reason,
            error_kind=result.error_kind,
            mask=result.error_kind in ("llm", "sandbox"),
        )


def _model(ctx: vf.ModelContext, endpoint: str, secret: str) -> OpenAIModel:
    sampling: Mapping[str, Any] = {}  # verifiers sets the run's own on the way
    return OpenAIModel(
        ctx.model, base_url=endpoint, api_key=secret, sampling=sampling, timeout=_PATIENCE
    )
