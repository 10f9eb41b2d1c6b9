"""`AsyncLocalREPLEnv`: `LocalREPLEnv` for an event loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.common.closeable import AsyncCloseable
from repl_env.common.set_module import set_module
from repl_env.env.async_episode import AsyncEpisode, Result
from repl_env.env.local_base import LocalBase
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.episode.contexts import Given
from repl_env.episode.initial_files import Files
from repl_env.llm.model_spec import LLM
from repl_env.models import DEFAULT_MAX_ITERATIONS, REPLState, result_of
from repl_sandbox.types import JSON, Missing

if TYPE_CHECKING:
    from repl_sandbox.session.files.async_session_files import AsyncSessionFiles


@set_module("repl_env")
class AsyncLocalREPLEnv(AsyncEpisode, LocalBase, AsyncCloseable):
    """Episodes on this machine for an event loop: `LocalREPLEnv`, awaited, and `async with`.

    ```python
    async with AsyncLocalREPLEnv() as env:
        await env.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        result = await env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.reward, result.done)  # 1.0 True
    ```
    Arguments, defaults and errors are those of `LocalREPLEnv`. Rubrics, tools and functions for
    sub-calls may be coroutine functions. `state`, `list_variables` and `draft` are awaited too.
    Cancelling a step interrupts its code and keeps the variables. Many environments run at once on
    one loop.
    """

    @property
    def files(self) -> AsyncSessionFiles:
        """The files of the session's workspace, awaited; see `LocalREPLEnv.files`."""
        files: AsyncSessionFiles = self._env.files
        return files

    async def reset(
        self,
        *,
        context: Given | None = None,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        task_prompt: str = "",
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        seed: int | None = None,
        episode_id: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        rlm_max_depth: int | None = None,
        rlm_max_iterations: int | None = None,
    ) -> Result:
        """Begin an episode in a new session.

        Args:
            context: str, bytes, list, dict, or a pathlib.Path to a file: the variable `context`.
            contexts: several contexts, by variable name.
            files: contents by path in the workspace: bytes, str, or a pathlib.Path.
            task_prompt: the policy's task.
            max_iterations: steps until the episode ends without an answer; 30.
            seed: of the session's random numbers.
            episode_id: a name for the episode; random by default.
            hf_token, llm_model, llm: the model for sub-calls.
            expected_answer: for the rubric; never in the session.
            answer_schema: a type or a JSON schema that answers must fit.
            rlm_max_depth, rlm_max_iterations: limits of child runs in this episode.

        Raises:
            TypeError, ValueError, OSError: naming the argument; the previous episode is untouched.
            IsolationError: this system cannot provide the requested isolation.
        """
        options = options_in(ResetOptions, locals())
        return result_of(await self._env.reset_async(**options))

    async def follow_up(
        self,
        *,
        task_prompt: str,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, str | bytes | JSON] | None = None,
    ) -> Result:
        """Begin another episode in the current session, for a further question on it.

        Variables, files and the context stay; iterations, answer and score start anew, spending on
        sub-calls does not. `variables` are set first. The other arguments are as in `reset`.
        ```python
        await env.execute("words = context.split()\\nFINAL(len(words))")
        await env.follow_up(task_prompt="How many letters?", expected_answer="11")
        print((await env.execute("FINAL(sum(map(len, words)))")).reward)  # 1.0
        ```
        """
        options = options_in(FollowUpOptions, locals())
        return result_of(await self._env.follow_up_async(**options))

    async def state(self) -> REPLState:
        """The episode so far: step count, iteration, answer, usage. NotReset if none has begun.

        A method, as in OpenEnv's local environment; `REPLEnvironment.state` is a property.
        """
        return self._env.state

    async def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return self._env.variables

    async def save(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """Write the episode to the file `path`, for `load` in this or another process.

        The file has variables, files of the workspace, score, iterations and the expected answer.
        Returns the variables and files that could not be saved.
        ```python
        await env.execute("words = context.split()")
        await env.save("episode.ckpt")
        async with AsyncLocalREPLEnv() as other:
            await other.load("episode.ckpt")
            print((await other.execute("FINAL(len(words))")).reward)  # 1.0
        ```
        """
        return await self._env.save_async(path)

    async def load(
        self,
        path: str | os.PathLike[str],
        *,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        answer_schema: Any = None,
    ) -> tuple[Missing, ...]:
        """Continue the episode that `save` wrote to the file `path`, in a new session.

        The model of sub-calls and a type as `answer_schema` are not in the file: give them again.

        Returns the variables that could not be restored.
        """
        return await self._env.load_async(
            path, hf_token=hf_token, llm_model=llm_model, llm=llm, answer_schema=answer_schema
        )

    async def rollback(self, cells: int = 1) -> tuple[str, ...]:
        """Undo the last `cells` cells; see `REPLEnvironment.rollback`."""
        return await self._env.rollback_async(cells)

    async def branch(self, *, seed: int | None = None) -> AsyncLocalREPLEnv:
        """Copy this environment in the middle of its episode; both continue independently.

        `seed` seeds the branch's random numbers. Close both. Raises NotReset, and SandboxError
        if the sandbox keeps no snapshots.

        ```python
        await env.execute("words = context.split()")
        async with await env.branch(seed=1) as branch:
            print((await branch.execute("FINAL(len(words))")).reward)  # 1.0
        print((await env.state()).final_answer)  # None
        ```
        """
        return self.of(await self._env.branch_async(seed=seed))
