"""`REPLTaskEnv`: a model that writes code in fences, and sessions that run it turn by turn."""

from __future__ import annotations

from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import model_validator

from repl_env import RLM_SYSTEM_PROMPT_SHORT, REPLObservation, StepResult
from repl_env.common.display import set_module
from repl_env.env.rows import action_of_reply, escaped, message_of
from repl_env.integrations.verifiers.record import EpisodeRecord
from repl_env.integrations.verifiers.sessions import Episode, SessionConfig, infrastructure
from repl_env.integrations.verifiers.task_request import question_of, request_of, turns_of


@set_module("repl_env.integrations.verifiers")
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


@set_module("repl_env.integrations.verifiers")
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
