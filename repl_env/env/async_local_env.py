"""`AsyncLocalREPLEnv`: `LocalREPLEnv` for an event loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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
class AsyncLocalREPLEnv(AsyncEpisode, LocalBase):
    """`LocalREPLEnv` for an event loop: the same methods, awaited, and `async with`."""

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
        """Begin an episode in a new session; see `LocalREPLEnv.reset`."""
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
        """Begin another episode in the session that is there; see `LocalREPLEnv.follow_up`."""
        options = options_in(FollowUpOptions, locals())
        return result_of(await self._env.follow_up_async(**options))

    async def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._env.state

    async def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return self._env.variables

    async def save(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """Write the episode to the file `path`; see `LocalREPLEnv.save`.

        The file holds the expected answer. Returns the variables and files that could not be saved.
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
        """Continue the episode in the file `path`; see `LocalREPLEnv.load`.

        Returns the variables that could not be restored.
        """
        return await self._env.load_async(
            path, hf_token=hf_token, llm_model=llm_model, llm=llm, answer_schema=answer_schema
        )

    async def branch(self, *, seed: int | None = None) -> AsyncLocalREPLEnv:
        """Branch the episode; see `LocalREPLEnv.branch`."""
        return self.of(await self._env.branch_async(seed=seed))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
