"""`REPLHarness`: our recursive loop as the program that plays a seat, in this process.

Every call of a model goes to the endpoint that verifiers hands out, where it is recorded. There is
no program to install and no process to start: code that the model writes runs in a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire

from repl_env import ModelError
from repl_env.common.display import set_module
from repl_env.integrations.verifiers.record import EpisodeRecord
from repl_env.integrations.verifiers.sessions import SessionConfig, infrastructure
from repl_env.integrations.verifiers.task_request import REPLData, question_of, request_of
from repl_env.models import DEFAULT_MAX_ITERATIONS
from repl_env.prompts import RLM_SYSTEM_PROMPT, RLM_SYSTEM_PROMPT_SHORT
from repl_env.rlm import RLM, Budget, ModelRequest, OpenAIModel, RequestGate, RLMRunResult
from repl_env.rlm.model_call import AnyEvent, CellRan

_DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")
# verifiers limits the rollouts in flight itself.
_GATE = RequestGate(4096)
# Seconds for one answer. verifiers has time-outs of its own, for stages of a rollout.
_PATIENCE = 24 * 3600.0


@set_module("repl_env.integrations.verifiers")
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


@set_module("repl_env.integrations.verifiers")
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
