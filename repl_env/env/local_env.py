"""`LocalREPLEnv`: episodes on this machine; `AsyncLocalREPLEnv` is its twin for event loops.

Both delegate to `REPLEnvironment` and return its observations as clients see them. An unknown
argument raises TypeError, because a person wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.common.closeable import Closeable
from repl_env.common.set_module import set_module
from repl_env.env.local_base import LocalBase
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.episode.contexts import Given
from repl_env.episode.initial_files import Files
from repl_env.episode.session_effects import OnOutput
from repl_env.llm.model_spec import LLM
from repl_env.models import (
    DEFAULT_MAX_ITERATIONS,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    action_of,
    result_of,
    showing,
)
from repl_sandbox.types import JSON, Missing

if TYPE_CHECKING:
    from repl_sandbox.session.files.session_files import SessionFiles

__all__ = ["LocalREPLEnv"]

Result = StepResult[REPLObservation]


@set_module("repl_env")
class LocalREPLEnv(LocalBase, Closeable):
    """Episodes on this machine, in sessions that the kernel contains.

    ```python
    with LocalREPLEnv() as env:
        env.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        result = env.execute("FINAL(len(context.split()))")
        print(result.reward, result.done)
    ```
    The arguments are those of `REPLEnvironment`, by name.
    """

    @property
    def files(self) -> SessionFiles:
        """The files of the session's workspace, for the host: `put`, `get`, `list`, `archive`.

        They stay readable after the end of the episode, until the next reset or `close`.
        ```python
        env.files.put("train.csv", rows)
        env.execute(code)
        submission = env.files.get("submission.csv")  # bytes
        env.files.archive(to="workspace.tar")
        ```
        Raises:
            NotReset: no episode has begun.
        """
        files: SessionFiles = self._env.files
        return files

    def reset(
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
            context: the input of the episode: str, bytes, list, dict, or a pathlib.Path to a file.
                In the
                session it is the variable `context`. Contents of lists and dicts travel as JSON:
                tuples
                become lists, and keys that are not strings become strings.
            contexts: several contexts, by variable name.
            files: contents by path in the session's workspace, its working directory: bytes, str,
                or a
                pathlib.Path to a local file.
            task_prompt: the policy's task; it is in the metadata of every step.
            max_iterations: steps until the episode ends without an answer.
            seed: seed of the session's random numbers.
            episode_id: a name for the episode; random by default.
            hf_token, llm_model, llm: the model for sub-calls; never in the session or the state.
            expected_answer: for the rubric; never in the session.
            answer_schema: the type of valid answers, for pydantic, or a JSON schema as a dict. Its
                patterns
                have Rust's syntax: no look-around; `patternProperties` is not supported.
            rlm_max_depth, rlm_max_iterations: limits of child runs in this episode.

        Raises:
            TypeError, ValueError, OSError: naming the argument; the previous episode is untouched.
            IsolationError: this system cannot provide the requested isolation.
        """
        options = options_in(ResetOptions, locals())
        return result_of(self._env.reset(**options))

    def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run the action's code, or submit its answer; see `REPLEnvironment.step`."""
        return result_of(self._env.step(action, timeout_s, timeout=timeout, on_output=on_output))

    def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run `code` in one step, for at most `timeout_s` (or `timeout`) seconds of execution."""
        return self.step(action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output)

    def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step, unless its schema refuses the answer."""
        return result_of(self._env.step(REPLAction(is_final=True, final_answer=answer)))

    def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return self.execute(showing(name))

    def follow_up(
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
        """
        options = options_in(FollowUpOptions, locals())
        return result_of(self._env.follow_up(**options))

    def draft(self) -> JSON:
        """The present value of `answer["content"]`, or None."""
        return self._env.draft()

    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._env.state

    def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return self._env.variables

    def save(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """Write the episode to the file `path`; see `REPLEnvironment.save`.

        The file holds the expected answer. Returns the variables and files that could not be saved.
        """
        return self._env.save(path)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        answer_schema: Any = None,
    ) -> tuple[Missing, ...]:
        """Continue the episode in the file `path`; see `REPLEnvironment.load`.

        Returns the variables that could not be restored.
        """
        return self._env.load(
            path, hf_token=hf_token, llm_model=llm_model, llm=llm, answer_schema=answer_schema
        )

    def branch(self, *, seed: int | None = None) -> LocalREPLEnv:
        """Copy this environment in the middle of its episode; both continue independently.

        As in `REPLEnvironment.branch`, session, episode and rubric are copies; tools and functions
        for
        sub-calls are the same objects. `seed` seeds the branch's random numbers.
        ```python
        candidates = [env.branch(seed=n) for n in range(4)]
        results = [branch.execute(code) for branch, code in zip(candidates, proposals)]
        ```
        """
        return self.of(self._env.branch(seed=seed))

    def close(self) -> None:
        """Close the session. Safe to call twice."""
        self._env.close()
