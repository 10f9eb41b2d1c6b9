"""verl: a session as a tool of verl's agent loop.

Needs verl, in a virtual environment of its own: `pip install 'repl-env[verl]'`. A configuration of
tools names the class:
```yaml
tools:
  - class_name: repl_env.integrations.verl.REPLTool
    config: {type: native}
```
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from repl_env import AsyncLocalREPLEnv, EpisodeAborted, EpisodeDone, NotReset, REPLAction
from repl_env.env.rows import escaped, message_of
from repl_env.integrations import needing, request_of_row

with needing("verl: pip install 'repl-env[verl]'", "verl", "torch"):
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

__all__ = ["REPLTool"]

_SCHEMA = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code in a session whose variables stay from one call to the "
        "next. `context` is what the task is about. FINAL(answer) in the code gives the answer.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code."}},
            "required": ["code"],
        },
    },
}
# Arguments of `config` that are verl's.
_OF_VERL = ("type",)


class REPLTool(BaseTool):
    """Runs code in a session of the trajectory's own.

    `tools_kwargs["python"]["create_kwargs"]` of a row are the arguments of its session's reset, as
    `context` and `expected_answer`, or `ground_truth`. `config` has arguments of `LocalREPLEnv`.

    verl's agent loop makes and releases an instance for each call. So the session belongs to the
    trajectory (`agent_data`), is opened by the first call, and ends with the trajectory. Without an
    `agent_data` it belongs to the instance.

    The reward of a call is that of its step; `tool_metrics` has `mask`, which says that a failure
    of the infrastructure touched the episode.
    """

    def __init__(
        self, config: Mapping[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None
    ) -> None:
        super().__init__(dict(config), tool_schema)
        self._arguments = {name: value for name, value in config.items() if name not in _OF_VERL}
        AsyncLocalREPLEnv(**self._arguments)  # which checks them
        self._given: dict[str, Mapping[str, Any]] = {}
        self._of_instances: dict[str, _Episode] = {}
        self._of_trajectories: weakref.WeakKeyDictionary[Any, _Episode] = (
            weakref.WeakKeyDictionary()
        )

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """The schema of the tool, where the configuration has none."""
        return OpenAIFunctionToolSchema.model_validate(_SCHEMA)

    async def create(
        self,
        instance_id: str | None = None,
        create_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[str, ToolResponse]:
        """Note the row that an instance is for."""
        instance_id = instance_id or uuid4().hex
        self._given[instance_id] = {**kwargs, **(create_kwargs or {})}
        return instance_id, ToolResponse()

    async def execute(
        self,
        instance_id: str,
        parameters: dict[str, Any],
        agent_data: Any = None,
        **kwargs: Any,
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Run the code of a call."""
        code = parameters.get("code")
        if not isinstance(code, str):
            return ToolResponse(text="Error: the argument `code` must be a text."), 0.0, {}
        episode = self._episode(instance_id, agent_data)
        return await episode.run(code)

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """All rewards of an instance's session so far."""
        episode = self._of_instances.get(instance_id)
        return 0.0 if episode is None else episode.reward

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End the session of an instance; that of a trajectory goes on."""
        self._given.pop(instance_id, None)
        episode = self._of_instances.pop(instance_id, None)
        if episode is not None:
            await episode.env.close()

    def _episode(self, instance_id: str, agent_data: Any) -> _Episode:
        episodes: Any = self._of_instances if agent_data is None else self._of_trajectories
        owner = instance_id if agent_data is None else agent_data
        if owner not in episodes:
            env = AsyncLocalREPLEnv(**self._arguments)
            episodes[owner] = _Episode(env, self._given.get(instance_id, {}))
            if agent_data is not None:
                weakref.finalize(agent_data, _close_soon, asyncio.get_running_loop(), env)
        found: _Episode = episodes[owner]
        return found


class _Episode:
    """A session and its task; calls of one turn come side by side, and are run in order."""

    def __init__(self, env: AsyncLocalREPLEnv, row: Mapping[str, Any]) -> None:
        self.env, self.reward = env, 0.0
        self._row, self._has_begun, self._turn = row, False, asyncio.Lock()

    async def run(self, code: str) -> tuple[ToolResponse, float, dict[str, Any]]:
        async with self._turn:
            if not self._has_begun:
                await self.env.reset(**request_of_row(self._row))
                self._has_begun = True
            try:
                result = await self.env.step(REPLAction(code=code))
            except EpisodeDone:
                return ToolResponse(text="The episode is over."), 0.0, {}
            except (EpisodeAborted, NotReset) as error:
                lost_response = ToolResponse(text=f"The session is lost: {error}")
                return lost_response, 0.0, {"done": True, "mask": True}
            reward = float(result.reward or 0.0)
            self.reward += reward
            seen = result.observation
            metrics = {
                "done": result.done,
                "task_reward": seen.task_reward or 0.0,
                "mask": bool((result.metadata or {}).get("mask")),
                "final_answer": seen.final_answer,
            }
            return ToolResponse(text=escaped(message_of(seen))), reward, metrics


# Loops keep weak references to their tasks.
_CLOSING: set[Any] = set()


def _close_soon(loop: asyncio.AbstractEventLoop, env: AsyncLocalREPLEnv) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: _CLOSING.add(loop.create_task(_close(env))))


async def _close(env: AsyncLocalREPLEnv) -> None:
    await env.close()
    task = asyncio.current_task()
    _CLOSING.discard(task)
