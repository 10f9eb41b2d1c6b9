"""`LocalREPLEnv` and `AsyncLocalREPLEnv`: environments of this machine. OpenEnv's module path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Never, Self

from repl_env.common.display import AsyncCloseable, Closeable, DisplayedByRepr, set_module
from repl_env.env.async_episode import AsyncEpisode, Result
from repl_env.env.attributes import of_inner
from repl_env.env.environment import REPLEnvironment
from repl_env.env.options import ConstructorOptions
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.episode.contexts import ContextPart, Given, Preview
from repl_env.episode.effects import OnOutput
from repl_env.episode.initial_files import Files
from repl_env.llm.spec import LLM
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLState,
    action_of,
    result_of,
    showing,
)
from repl_env.rlm.answerers import Provider, UserFunction
from repl_env.rubrics import Rubric
from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox
from repl_sandbox.tables import Settable
from repl_sandbox.types import JSON, Answers, Missing

if TYPE_CHECKING:
    from repl_env.rlm.budget import Budget, Price
    from repl_env.rlm.ledger import LedgerAccount
    from repl_env.rlm.subcalls import EpisodeSubcalls
    from repl_sandbox.session.files_api import AsyncSessionFiles, SessionFiles


# `LocalBase`: constructor, settings and views of the two local environments.


class LocalBase(DisplayedByRepr):
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
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
        context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH,
        rubric: Rubric | None = None,
        llm_query_fn: UserFunction | None = None,
        llm_batch_fn: UserFunction | None = None,
        subcall_fn: UserFunction | None = None,
        subcall_batch_fn: UserFunction | None = None,
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
        history: int = 0,
        tools: Mapping[str, UserFunction] | None = None,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        answers: Answers = "compatible",
        preview: Preview = "head",
        max_concurrent_subcalls: int = DEFAULT_MAX_CONCURRENT_SUBCALLS,
        **unknown: Never,
    ) -> None:
        self._check_call(unnamed, unknown)
        self._env = REPLEnvironment(**options_in(ConstructorOptions, locals()))

    def _check_call(self, unnamed: tuple[object, ...], unknown: Mapping[str, object]) -> None:
        """Raise TypeError naming the called class; Python would name this one."""
        if unnamed:
            raise TypeError(f"{type(self).__name__} takes its arguments by name")
        for name in unknown:
            raise TypeError(f"{type(self).__name__} has no argument {name!r}{_hint(name)}")

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
        env = cls(**arguments)
        env._env.use_subcall_provider(provider)
        return env

    @classmethod
    def of(cls, environment: REPLEnvironment) -> Self:
        """Return an environment of this class around an existing `REPLEnvironment`."""
        env = object.__new__(cls)
        env._env = environment
        return env


# Fields of constructor arguments, and arguments of a reset, that users mistake for arguments.
_HINTS = {
    **{field.name: f"limits=Limits({field.name}=...)" for field in fields(Limits)},
    "timeout_s": "limits=Limits(timeout=...)",
    **{field.name: f'policy=Policy("lint", {field.name}=...)' for field in fields(Policy)},
    "language": "policy=Policy(...)",
}
_OF_RESET = frozenset(field.name for field in fields(ResetOptions))


def _hint(name: str) -> str:
    """Return a hint if an unknown argument is a field of `Limits` or `Policy`, or is of a reset."""
    if name in _OF_RESET:
        return f"; pass reset({name}=...)"
    place = _HINTS.get(name)
    if place is None:
        return ""
    kind = place.partition("=")[2].partition("(")[0]
    return f"; it is {place} (from repl_env import {kind})"


# `AsyncLocalREPLEnv`: `LocalREPLEnv` for an event loop.


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
            context: the variable `context`: str, bytes, list, dict, a table of pandas, polars or
                pyarrow, or a pathlib.Path to a file.
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
        variables: Mapping[str, Settable] | None = None,
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


# `LocalREPLEnv`: episodes on this machine; `AsyncLocalREPLEnv` is its twin for event loops.
#
# Both delegate to `REPLEnvironment` and return its observations as clients see them. An unknown
# argument raises TypeError, because a person wrote it.

__all__ = ["LocalREPLEnv"]


@set_module("repl_env")
class LocalREPLEnv(LocalBase, Closeable):
    """Episodes on this machine, in sessions that the kernel contains.

    ```python
    with LocalREPLEnv() as env:
        env.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        result = env.execute("FINAL(len(context.split()))")
        print(result.reward, result.done)  # 1.0 True
    ```
    All arguments are given by name. The first reset starts a sandbox, which environments of equal
    settings share; each reset opens a session in it.

    Args:
        rubric: scores the steps; each environment has its own copy. None: `REPLRubric()`.
        tools: functions of this process that code can call, by name; JSON in and out.
        llm_query_fn, llm_batch_fn: answer `llm_query(prompt)` and batches of it.
        subcall_fn, subcall_batch_fn: answer `rlm_query(prompt)` and batches of it.
        max_concurrent_subcalls: sub-calls of an episode at once; 8. Further ones wait.
        rlm_max_depth, rlm_max_iterations: levels of child runs, 1 (none), and turns of each.
        budget: `Budget`, the limit of each episode's sub-calls and time. None: no limit.
        prices: of models by name, as `Price`, for `budget.usd`.
        limits: `Limits` of a session: memory (1 GiB), seconds of a cell (30), processes, files.
        policy: the part of Python that cells may use. None: all of it.
        preload: modules to import once for all sessions.
        history: cells that `rollback` can undo; each takes one more waiting process. 0: none.
        isolation: "auto", "jailed", "confined", "container" or "process".
        require: the weakest tier to accept. None: "confined" under "auto", else the named one.
        image, runtime: for tier "container", as in `repl_sandbox.Sandbox`.
        sandbox: a `Sandbox` of yours, in place of the eight arguments above.
        answers: "compatible" also accepts answers that the code prints; "strict" does not.
        preview: how the context is shown: "none", "head", "head+tail" or "structure".
        max_output_length: characters of each output that are shown; 8,192.
        context_preview_length: characters of the preview; 500.

    Raises:
        TypeError, ValueError: naming the argument. Nothing has started yet.
    """

    @property
    def files(self) -> SessionFiles:
        """The files of the session's workspace, for the host: `put`, `get`, `list`, `archive`.

        They stay readable after the end of the episode, until the next reset or `close`.
        ```python
        env.files.put("train.csv", "a,b\\n1,2\\n")
        env.execute("open('result.csv', 'w').write(open('train.csv').read().upper())")
        print(env.files.get("result.csv"))  # b'A,B\\n1,2\\n'
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
            context: the input of the episode: str, bytes, list, dict, a table of pandas, polars or
                pyarrow, or a pathlib.Path to a file. In the session it is the variable `context`.
                Contents of lists and dicts travel as JSON: tuples become lists, and keys that are
                not strings are refused.
            contexts: several contexts, by variable name.
            files: contents by path in the session's workspace, its working directory: bytes, str,
                or a pathlib.Path to a local file.
            task_prompt: the policy's task; it is in the metadata of every step.
            max_iterations: steps until the episode ends without an answer; 30.
            seed: seed of the session's random numbers.
            episode_id: a name for the episode; random by default.
            hf_token, llm_model, llm: the model for sub-calls; never in the session or the state.
            expected_answer: for the rubric; never in the session.
            answer_schema: the type of valid answers, for pydantic, or a JSON schema as a dict. Its
                patterns have Rust's syntax: no look-around; `patternProperties` is not supported.
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
        """Take one step: run the action's code, or submit its answer.

        ```python
        env.step(REPLAction(code="words = context.split()"))
        result = env.step(REPLAction(is_final=True, final_answer=3))
        print(result.reward, result.done)  # 1.0 True
        ```
        Args:
            action: `REPLAction(code=...)`; or with `is_final=True` and `final_answer`; or with
                `format_error`, for a reply that held no action.
            timeout_s, or timeout: seconds that the code may execute, waiting for the host not
                counted; None: `Limits.timeout`, 30 by default. Variables outlive a time-out.
            on_output: called with ("stdout" or "stderr", text) as output arrives.

        Returns the observation, with the reward of this step and `done`. Code that raises, times
        out or crashes is an observation with an `error_kind`, not an exception.

        Raises:
            NotReset, EpisodeDone: no episode has begun, or it is over.
            EpisodeAborted: the session is lost; a reset begins another one.
            TypeError, ValueError: naming the argument; nothing was run.
        """
        return result_of(self._env.step(action, timeout_s, timeout=timeout, on_output=on_output))

    def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run `code` in one step: `step(REPLAction(code=code))`, with its arguments and errors.

        ```python
        printed = []
        result = env.execute(
            "for word in context.split(): print(word)",
            timeout_s=5,
            on_output=lambda stream, text: printed.append(text),
        )
        print("".join(printed) == result.observation.result.stdout)  # True
        ```
        """
        return self.step(action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output)

    def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step.

        An answer that `answer_schema` refuses is a step with the `error_kind` "answer", and the
        episode goes on. Raises NotReset, EpisodeDone.
        ```python
        env.execute("words = context.split()")
        print(env.submit_final_answer(3).reward)  # 1.0
        ```
        """
        return result_of(self._env.step(REPLAction(is_final=True, final_answer=answer)))

    def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step.

        ```python
        env.execute("words = context.split()")
        result = env.get_variable("words")
        print(result.observation.result.stdout.rstrip())  # ['one', 'two', 'three']
        ```
        """
        return self.execute(showing(name))

    def follow_up(
        self,
        *,
        task_prompt: str,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, Settable] | None = None,
    ) -> Result:
        """Begin another episode in the current session, for a further question on it.

        Variables, files and the context stay; iterations, answer and score start anew, spending on
        sub-calls does not. `variables` are set first. The other arguments are as in `reset`.
        ```python
        env.execute("words = context.split()\\nFINAL(len(words))")
        env.follow_up(task_prompt="How many letters?", expected_answer="11")
        print(env.execute("FINAL(sum(map(len, words)))").reward)  # 1.0
        ```
        """
        options = options_in(FollowUpOptions, locals())
        return result_of(self._env.follow_up(**options))

    def draft(self) -> JSON:
        """The present value of `answer["content"]`, the draft of the answer, or None.

        ```python
        env.execute("answer['content'] = 'at least two'")
        print(env.draft())  # at least two
        ```
        """
        return self._env.draft()

    def state(self) -> REPLState:
        """The episode so far: step count, iteration, answer, usage. NotReset if none has begun.

        A method, as in OpenEnv's local environment; `REPLEnvironment.state` is a property.
        ```python
        env.execute("FINAL(3)")
        print(env.state().iteration, env.state().final_answer)  # 1 3
        ```
        """
        return self._env.state

    def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return self._env.variables

    def save(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """Write the episode to the file `path`, for `load` in this or another process.

        The file has variables, files of the workspace, score, iterations and the expected answer.
        Returns the variables and files that could not be saved.
        ```python
        env.execute("words = context.split()")
        env.save("episode.ckpt")
        with LocalREPLEnv() as other:
            other.load("episode.ckpt")
            print(other.execute("FINAL(len(words))").reward)  # 1.0
        ```
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
        """Continue the episode that `save` wrote to the file `path`, in a new session.

        The model of sub-calls and a type as `answer_schema` are not in the file: give them again.

        Returns the variables that could not be restored.
        """
        return self._env.load(
            path, hf_token=hf_token, llm_model=llm_model, llm=llm, answer_schema=answer_schema
        )

    def rollback(self, cells: int = 1) -> tuple[str, ...]:
        """Undo the last `cells` cells; see `REPLEnvironment.rollback`.

        The environment has to keep earlier states, which it does not by default:
        ```python
        with LocalREPLEnv(history=2) as env:
            env.reset(context="one two three", expected_answer="3")
            env.execute("words = context.split()")
            env.execute("words.clear()")
            env.rollback()
            print(env.execute("FINAL(len(words))").reward)  # 1.0
        ```
        """
        return self._env.rollback(cells)

    def branch(self, *, seed: int | None = None) -> LocalREPLEnv:
        """Copy this environment in the middle of its episode; both continue independently.

        Session, episode and rubric are copies; tools and functions for sub-calls are the same
        objects. `seed` seeds the branch's random numbers.
        ```python
        proposals = ["FINAL(len(context))", "FINAL(len(context.split()))"]
        rewards = []
        for seed, code in enumerate(proposals):
            with env.branch(seed=seed) as branch:
                rewards.append(branch.execute(code).reward)
        print(rewards)  # [0.0, 1.0]
        ```
        """
        return self.of(self._env.branch(seed=seed))

    def close(self) -> None:
        """Close the session. Safe to call twice."""
        self._env.close()
