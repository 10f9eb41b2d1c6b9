"""verifiers: tasks, an environment, tools and a harness over sessions.

Needs `pip install 'repl-env[verifiers]'`. In configurations of verifiers the plugin is
called `repl-env-verifiers`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, Field, JsonValue, model_validator

from repl_env import (
    AsyncLocalREPLEnv,
    EpisodeAborted,
    ModelError,
    REPLEnv,
    REPLObservation,
    SandboxError,
    ServerError,
    StepResult,
)
from repl_env.common.lazy_imports import lazy_exports
from repl_env.env.rows import action_of_reply, escaped, message_of
from repl_env.integrations import needing
from repl_env.models import DEFAULT_MAX_ITERATIONS
from repl_env.prompts import RLM_SYSTEM_PROMPT, RLM_SYSTEM_PROMPT_SHORT
from repl_env.rlm import RLM, Budget, ModelRequest, OpenAIModel, RequestGate, RLMRunResult
from repl_env.rlm.model_call import AnyEvent, CellRan

with needing("verifiers: pip install 'repl-env[verifiers]'", "verifiers", "pydantic_config"):
    import verifiers.v1 as vf
    from pydantic_config import BaseConfig
    from verifiers.v1.dialects.chat import message_to_wire

if TYPE_CHECKING:
    from repl_env.integrations.verifiers_toolset import REPLToolset

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

__getattr__, __dir__ = lazy_exports(
    __name__, {"repl_env.integrations.verifiers_toolset": ["REPLToolset"]}
)

# Location of the sessions of episodes: this machine, or a server of this project.

Episode: TypeAlias = AsyncLocalREPLEnv | REPLEnv

# Failures of what an episode runs on, which are nobody's in the rollout: verifiers tries again.
LOST_SESSION_ERRORS = (EpisodeAborted, SandboxError, ServerError)


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


# The data of one task of verifiers, the state of its episode, and the arguments of its reset.


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


class REPLToolsetConfig(vf.ToolsetConfig):
    """The place of the tool server and of its sessions."""

    sessions: SessionConfig = SessionConfig()


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
        from repl_env.integrations.verifiers_toolset import REPLToolset

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
        try:
            while not record.done:
                segment = await talk.turn(escaped(next_message))
                if segment.terminated:
                    await self._give_up(episode, record)
                    return
                result, next_message = await self._step(episode, segment.last_reply, result)
                record.add(result)
                record.check()
        finally:
            record.write(talk.trace)

    async def _step(
        self, episode: Episode, reply: str, last: StepResult[REPLObservation]
    ) -> tuple[StepResult[REPLObservation], str]:
        """The result of a reply, and its text for the model."""
        action = action_of_reply(reply, last.observation.available_variables)
        result = await episode.step(action, timeout_s=self.config.sessions.timeout_s)
        return result, message_of(result.observation, action.metadata.get("note"))

    async def _give_up(self, episode: Episode, record: EpisodeRecord) -> None:
        """Score an episode that a limit of verifiers has ended, as one whose turns are used up."""
        if hasattr(episode, "give_up"):  # not on a server
            record.add(await episode.give_up())


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
        cells = _Cells()
        try:
            async with _model(ctx, endpoint, secret) as model:
                rlm = self._rlm(model, data, cells)
                with infrastructure():
                    result = await rlm.arun(question_of(data), **request_of(data))
        except ModelError as error:
            cells.record(getattr(error, "result", None)).write(trace)
            if trace.stop_condition is None:  # else a limit of verifiers has refused the call
                raise
        else:
            record = cells.record(result)
            record.write(trace)
            if trace.stop_condition is None:
                record.check()
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
        turns = data.max_iterations if isinstance(data, REPLData) else DEFAULT_MAX_ITERATIONS
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
    """The rewards of the root run's cells, by turn."""

    def __init__(self) -> None:
        self._turns: dict[int, EpisodeRecord] = {}
        self._done = False

    def __call__(self, event: AnyEvent) -> None:
        if not isinstance(event, CellRan) or event.run != "0":
            return
        seen, turn = event.observation, self._turns.setdefault(event.turn, EpisodeRecord())
        turn.rewards.append(float(seen.reward or 0.0))
        turn.task_rewards.append(float(seen.task_reward or 0.0))
        self._done = seen.done

    def record(self, result: RLMRunResult | None) -> EpisodeRecord:
        """The result of the run."""
        turns = self._turns.values()
        rewards = [sum(turn.rewards) for turn in turns]
        parts = [sum(turn.task_rewards) for turn in turns]
        if result is None:
            return EpisodeRecord(rewards=rewards, task_rewards=parts)
        if not self._done:  # it ended by prose, or by a limit
            rewards.append(float(result.reward or 0.0))
            parts.append(float(result.task_reward or 0.0))
        return EpisodeRecord(
            rewards=rewards,
            task_rewards=parts,
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
