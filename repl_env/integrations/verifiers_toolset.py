"""`REPLToolset`: an episode as tools, for harnesses that call tools.

verifiers runs this module in a process of its own, one for each rollout. The expected answer and
the score are there, and the session is held as every session is.
"""

from __future__ import annotations

import asyncio

import verifiers.v1 as vf

from repl_env import EpisodeAborted, EpisodeDone, REPLAction, REPLObservation, StepResult
from repl_env.env.rows import escaped, message_of
from repl_env.integrations.verifiers_episodes import (
    LOST_SESSION_ERRORS,
    Episode,
    REPLState,
    REPLToolsetConfig,
    question_of,
    request_of,
    turns_of,
)

_OVER = "The episode is over: the answer was submitted, or the turns are used up."


# Without `set_module`: verifiers runs the module that `__module__` names.
class REPLToolset(vf.Toolset[REPLToolsetConfig, REPLState]):
    """The tools `repl_python` and `repl_submit` on one session."""

    TOOL_PREFIX = "repl"
    _env: Episode

    async def setup_task(self, task: vf.TaskData) -> None:
        """Begin the episode of the task."""
        self._turn = asyncio.Lock()  # a model may call several tools at once
        sessions = self.config.sessions
        self._env = await self._exit_stack.enter_async_context(sessions.environment())
        await self._env.reset(
            task_prompt=question_of(task), max_iterations=turns_of(task), **request_of(task)
        )

    @vf.tool
    async def python(self, code: str) -> str:
        """Run Python code in a session whose variables stay from one call to the next.

        `context` is what the task is about. Returns what the code printed and the value of its last
        line. `FINAL(answer)` in the code submits the answer.
        """
        return await self._step(REPLAction(code=code))

    @vf.tool
    async def submit(self, answer: str) -> str:
        """Submit the final answer, which ends the episode."""
        return await self._step(REPLAction(is_final=True, final_answer=answer))

    async def _step(self, action: REPLAction) -> str:
        async with self._turn:
            record = self.state.episode
            try:
                result: StepResult[REPLObservation] = await self._env.step(
                    action, timeout_s=self.config.sessions.timeout_s
                )
            except EpisodeDone:
                return _OVER
            except LOST_SESSION_ERRORS as error:
                kind = error.kind if isinstance(error, EpisodeAborted) else "sandbox"
                record.mask, record.error_kind = True, kind
                return f"The session is lost: {error}"
            record.add(result)
            return escaped(message_of(result.observation))


if __name__ == "__main__":
    REPLToolset.run()
