"""`LocalREPLEnv`: episodes on this machine; `AsyncLocalREPLEnv` is its twin for event loops.

Both delegate to `REPLEnvironment` and return its observations as clients see them. An unknown
argument raises TypeError, because a person wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Never, Self

from repl_env.common.closeable import Closeable
from repl_env.env.assignable_attributes import of_inner
from repl_env.env.environment import REPLEnvironment
from repl_env.episode.contexts import ContextPart, Given
from repl_env.episode.initial_files import Files
from repl_env.episode.previews import Preview
from repl_env.episode.session_effects import OnOutput
from repl_env.llm.model_spec import LLM
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    action_of,
    result_of,
    showing,
)
from repl_env.rewards.rubric import Rubric
from repl_env.rlm.subcalls.subcall_settings import Provider, UserFunction
from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox
from repl_sandbox.types import JSON, Answers, Missing

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_env.rlm.budget.ledger import LedgerAccount
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls
    from repl_sandbox.session.files.session_files import SessionFiles

__all__ = ["LocalREPLEnv"]

Result = StepResult[REPLObservation]


class LocalBase:
    """Base of the two local environments: the constructor and the members that need no session.

    The attributes are those of `REPLEnvironment` and are assignable as there.
    """

    llm_query_fn = of_inner("_env", "llm_query_fn")
    llm_batch_fn = of_inner("_env", "llm_batch_fn")
    subcall_fn = of_inner("_env", "subcall_fn")
    subcall_batch_fn = of_inner("_env", "subcall_batch_fn")
    max_output_length = of_inner("_env", "max_output_length")
    context_preview_length = of_inner("_env", "context_preview_length")
    rlm_max_depth = of_inner("_env", "rlm_max_depth")
    rlm_max_iterations = of_inner("_env", "rlm_max_iterations")
    max_concurrent_subcalls = of_inner("_env", "max_concurrent_subcalls")
    initial_context = of_inner("_env", "initial_context")

    def __init__(
        self,
        *unnamed: Never,
        llm_query_fn: UserFunction | None = None,
        llm_batch_fn: UserFunction | None = None,
        subcall_fn: UserFunction | None = None,
        subcall_batch_fn: UserFunction | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
        context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH,
        rubric: Rubric | None = None,
        rlm_max_depth: int = 1,
        rlm_max_iterations: int | None = None,
        sandbox: Sandbox | AsyncSandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        image: str | None = None,
        runtime: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        preload: Sequence[str] = (),
        tools: Mapping[str, UserFunction] | None = None,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        answers: Answers = "compatible",
        preview: Preview = "head",
        max_concurrent_subcalls: int = DEFAULT_MAX_CONCURRENT_SUBCALLS,
        **unknown: Never,
    ) -> None:
        self._check_call(unnamed, unknown)
        self._env = REPLEnvironment(
            max_output_length=max_output_length,
            context_preview_length=context_preview_length,
            rubric=rubric,
            llm_query_fn=llm_query_fn,
            llm_batch_fn=llm_batch_fn,
            subcall_fn=subcall_fn,
            subcall_batch_fn=subcall_batch_fn,
            rlm_max_depth=rlm_max_depth,
            rlm_max_iterations=rlm_max_iterations,
            sandbox=sandbox,
            isolation=isolation,
            require=require,
            image=image,
            runtime=runtime,
            limits=limits,
            policy=policy,
            preload=preload,
            tools=tools,
            budget=budget,
            prices=prices,
            answers=answers,
            preview=preview,
            max_concurrent_subcalls=max_concurrent_subcalls,
        )

    def _check_call(self, unnamed: tuple[object, ...], unknown: Mapping[str, object]) -> None:
        """Raise TypeError naming the called class; Python would name this one."""
        if unnamed:
            raise TypeError(f"{type(self).__name__} takes its arguments by name")
        for name in unknown:
            raise TypeError(f"{type(self).__name__} has no argument {name!r}{_meant(name)}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._env._condition}>"

    @property
    def max_iterations(self) -> int:
        """The default number of steps of an episode."""
        return self._env.max_iterations

    @max_iterations.setter
    def max_iterations(self, count: int) -> Never:
        raise AttributeError(f"pass reset(max_iterations={count!r}): each reset says it here")

    @property
    def initial_task_prompt(self) -> str:
        """The default task of an episode."""
        return self._env.initial_task_prompt

    @initial_task_prompt.setter
    def initial_task_prompt(self, task_prompt: str) -> Never:
        raise AttributeError("pass reset(task_prompt=...): each reset says it here")

    @property
    def rubric(self) -> Rubric | None:
        """This environment's own copy of the rubric."""
        return self._env.rubric

    @property
    def session(self) -> Any:
        """The engine's session of this episode; NotReset if none has begun."""
        return self._env.session

    @property
    def account(self) -> LedgerAccount:
        """The ledger account of the episode's sub-calls; see `REPLEnvironment.account`."""
        return self._env.account

    @property
    def subcalls(self) -> EpisodeSubcalls | None:
        """The sub-calls of this episode; see `REPLEnvironment.subcalls`."""
        return self._env.subcalls

    @property
    def contexts(self) -> tuple[ContextPart, ...]:
        """The context of this episode, variable by variable; NotReset if none has begun."""
        return self._env.contexts

    @classmethod
    def with_provider(cls, provider: Provider, **arguments: Any) -> Self:
        """Return an environment whose sub-calls `provider` answers."""
        made = cls(**arguments)
        made._env.answer_by(provider)
        return made

    @classmethod
    def of(cls, environment: REPLEnvironment) -> Self:
        """Return an environment of this class around an existing `REPLEnvironment`."""
        made = object.__new__(cls)
        made._env = environment
        return made


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
        """The files of the session's workspace, for the host to put, read and list.

        They stay readable after the end of the episode, until the next reset or `close`.
        ```python
        env.files.put("train.csv", rows)
        env.execute(code)
        submission = env.files.get("submission.csv")  # bytes
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
        observation = self._env.reset(
            seed=seed,
            episode_id=episode_id,
            context=context,
            task_prompt=task_prompt,
            hf_token=hf_token,
            llm_model=llm_model,
            contexts=contexts,
            files=files,
            max_iterations=max_iterations,
            llm=llm,
            expected_answer=expected_answer,
            answer_schema=answer_schema,
            rlm_max_depth=rlm_max_depth,
            rlm_max_iterations=rlm_max_iterations,
        )
        return result_of(observation)

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
        return result_of(
            self._env.follow_up(
                task_prompt,
                max_iterations=max_iterations,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                variables=variables,
            )
        )

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


# Fields of constructor arguments that users mistake for arguments.
_PLACES = {
    **{each.name: f"limits=Limits({each.name}=...)" for each in fields(Limits)},
    "timeout_s": "limits=Limits(timeout=...)",
    **{each.name: f'policy=Policy("lint", {each.name}=...)' for each in fields(Policy)},
    "language": "policy=Policy(...)",
}


def _meant(name: str) -> str:
    """Return a hint if an unknown argument is a field of `Limits` or `Policy`."""
    place = _PLACES.get(name)
    if place is None:
        return ""
    kind = place.partition("=")[2].partition("(")[0]
    return f"; it is {place} (from repl_env import {kind})"
