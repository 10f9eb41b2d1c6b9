"""`REPLVectorEnv`: n environments that are reset and stepped together.

Each environment has its own sessions, rubric and episode. Only equal contexts are shared, in memory
once (`Sandbox.with_shared`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

from repl_env.common.display import DisplayedByRepr, set_module
from repl_env.common.threads import ThreadPool
from repl_env.common.values import at_least, one_timeout
from repl_env.env.attributes import of_all
from repl_env.env.current_episode import CallGuard, Mode
from repl_env.env.environment import REPLEnvironment
from repl_env.env.outcomes import EpisodeGroup, Requests, Result, VectorOutcomes, resets_of
from repl_env.env.shared_contexts import SharedContexts
from repl_env.episode.call_options import RESET_NAMES
from repl_env.episode.effects import Effects, run_batch
from repl_env.local import LocalREPLEnv
from repl_env.models import REPLAction, REPLObservation
from repl_sandbox.errors import SandboxError
from repl_sandbox.session.batch import SessionBatch
from repl_sandbox.types import check_seconds

# Threads for calls outside sessions: openings, and rubrics that block.
_MAX_THREADS = 32


@set_module("repl_env")
class REPLVectorEnv(DisplayedByRepr, EpisodeGroup):
    """n environments, stepped concurrently. A context manager, blocking or asynchronous.

    ```python
    with REPLVectorEnv(8) as envs:
        envs.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        results = envs.step(["FINAL(len(context.split()))"] * 8)
        print([result.reward for result in results[:3]])  # [1.0, 1.0, 1.0]
    ```
    The arguments are those of `LocalREPLEnv`. Results are in the order of the actions. A branch of
    one of the environments is independent and outlives the group; its creator closes it.

    An environment whose session is lost is done: its result says so (`error_kind` "sandbox",
    `mask`), the others go on, and the next reset gives it a new session. A finished environment
    that gets another action returns its last result again, with reward 0.0; nothing is scored
    twice.

    A reset or step that fails in some environments completes in the others, then raises the first
    error; `results` and `errors` have the outcomes of all.

    Attributes:
        environments: the n environments.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    _request_names = RESET_NAMES  # argument names of one environment's reset

    llm_query_fn = of_all("llm_query_fn")
    llm_batch_fn = of_all("llm_batch_fn")
    subcall_fn = of_all("subcall_fn")
    subcall_batch_fn = of_all("subcall_batch_fn")
    max_output_length = of_all("max_output_length")
    context_preview_length = of_all("context_preview_length")
    rlm_max_depth = of_all("rlm_max_depth")
    rlm_max_iterations = of_all("rlm_max_iterations")
    max_concurrent_subcalls = of_all("max_concurrent_subcalls")
    max_iterations = of_all("max_iterations")
    initial_context = of_all("initial_context")
    initial_task_prompt = of_all("initial_task_prompt")

    def __init__(self, n: int, **arguments: Any) -> None:
        n = at_least(n, 1, "n")
        self._set_environments(tuple(LocalREPLEnv(**arguments) for _ in range(n)))

    def _set_environments(self, environments: tuple[LocalREPLEnv, ...]) -> None:
        """Begin with these environments, none of which has an episode."""
        n, self.environments = len(environments), environments
        self._shared = SharedContexts(self._inner(0))
        self._batch = SessionBatch()
        self._threads = ThreadPool(min(n, _MAX_THREADS), "repl-vector")
        self._mode: Mode | None = None
        # Two concurrent calls would each take some of the steps.
        self._call_guard = CallGuard("the environments are", "reset or step")
        self._outcomes = VectorOutcomes(n)

    def __repr__(self) -> str:
        last_results = [last for last in self._outcomes.last if last is not None]
        done = sum(last.done for last in last_results)
        condition = (
            f"{done} of {len(last_results)} episodes done" if last_results else "without episodes"
        )
        return f"<REPLVectorEnv of {len(self)}, {condition}>"

    def __len__(self) -> int:
        return len(self.environments)

    @overload
    def reset(
        self, requests: Requests | None = None, *, only: None = None, **shared: Any
    ) -> list[Result]: ...

    @overload
    def reset(
        self, requests: Requests | None = None, *, only: Iterable[int], **shared: Any
    ) -> list[Result | None]: ...

    def reset(
        self,
        requests: Requests | None = None,
        *,
        only: Iterable[int] | None = None,
        **shared: Any,
    ) -> Sequence[Result | None]:
        """Begin an episode in every environment, or in those of `only`, in new sessions.

        `shared` are arguments of `LocalREPLEnv.reset` for all environments; `requests` has one
        mapping of such arguments for each environment, or None, and overrides `shared`. With
        `only`, the episodes of the other environments go on, and their results here are None;
        `requests` may then have one mapping for each number in `only`, in its order.
        ```python
        tasks = iter([{"context": "a b", "expected_answer": "2"}, {"context": "c"}])
        results = envs.step(["FINAL(len(context.split()))", "words = context.split()"])
        done = [number for number, result in enumerate(results) if result.done]
        begun = envs.reset([next(tasks) for _ in done], only=done)
        print(done, [result is not None for result in begun])  # [0] [True, False]
        ```

        Raises:
            TypeError, ValueError, OSError, SandboxError: as `LocalREPLEnv.reset`, with the number
                of the environment as a note; the others were reset (`results`, `errors`).
        """
        with self._call_guard:
            resets = self._reset_arguments("plain", requests, only, shared)
            for _ in self._shared.plan(resets):
                self._shared.make()
            with self._recording_ended(resets):
                effects = [self._begin_effects("plain", i, each) for i, each in resets.items()]
                ended = self._run_effects(effects)
            results = self._record_resets("plain", resets, ended)
            self._shared.drop()
            return results

    def step(
        self,
        actions: Sequence[str | REPLAction | None],
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
    ) -> list[Result | None]:
        """Take one action in each environment concurrently; None is no action, and no result.

        A str is code. `timeout_s`, or `timeout`, limits each execution, as in `LocalREPLEnv.step`.
        ```python
        envs.step(["words = context.split()", None])
        first, second = envs.step(["FINAL(len(words))", REPLAction(is_final=True, final_answer=4)])
        print(first.reward, second.reward)  # 1.0 0.0
        ```
        Raises:
            NotReset: no episode has begun in the named environment; nothing was run.
            TypeError, ValueError: naming the action; nothing was run.
            Exception: of a rubric or a transform, with the number of the environment as a note; the
                others have taken their steps (`results`, `errors`).
        """
        self._check_mode("plain")
        timeout_s = one_timeout(timeout_s, timeout)
        with self._call_guard:
            actions_by_index = self._actions_by_index(actions, timeout_s)
            effects = [
                self._inner(index)._episodes.take_step("plain", action, timeout_s, {})
                for index, action in actions_by_index.items()
            ]
            return self._outcomes.record_steps(actions_by_index, self._run_effects(effects))

    @overload
    async def areset(
        self, requests: Requests | None = None, *, only: None = None, **shared: Any
    ) -> list[Result]: ...

    @overload
    async def areset(
        self, requests: Requests | None = None, *, only: Iterable[int], **shared: Any
    ) -> list[Result | None]: ...

    async def areset(
        self,
        requests: Requests | None = None,
        *,
        only: Iterable[int] | None = None,
        **shared: Any,
    ) -> Sequence[Result | None]:
        """`reset` for an event loop; `astep` then steps the episodes.

        ```python
        async with REPLVectorEnv(2) as group:
            await group.areset(context="a b c", expected_answer="3")
            results = await group.astep(["FINAL(len(context.split()))", "FINAL(4)"])
            print([result.reward for result in results])  # [1.0, 0.0]
        ```
        """
        with self._call_guard:
            resets = self._reset_arguments("async", requests, only, shared)
            for _ in self._shared.plan(resets):
                await self._shared.make_async()
            with self._recording_ended(resets):
                coroutines = [self._inner(i).reset_async(**each) for i, each in resets.items()]
                ended = await _gather(coroutines)
            results = self._record_resets("async", resets, ended)
            await self._shared.drop_async()
            return results

    async def astep(
        self,
        actions: Sequence[str | REPLAction | None],
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
    ) -> list[Result | None]:
        """`step` for episodes that `areset` began."""
        self._check_mode("async")
        timeout_s = one_timeout(timeout_s, timeout)
        with self._call_guard:
            actions_by_index = self._actions_by_index(actions, timeout_s)
            coroutines = [
                self._inner(index).step_async(action, timeout_s)
                for index, action in actions_by_index.items()
            ]
            return self._outcomes.record_steps(actions_by_index, await _gather(coroutines))

    def close(self) -> None:
        """Close all sessions. RuntimeError after `areset`, which needs `aclose`."""
        self._check_mode("plain")
        self._run_effects(
            [self._inner(index)._episodes.close_current() for index in range(len(self))]
        )
        self._shared.clear()
        self._shared.drop()
        self._end()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self._check_mode("async")
        await _gather([self._inner(index).close_async() for index in range(len(self))])
        self._shared.clear()
        await self._shared.drop_async()
        self._end()

    # ── what both ways do ────────────────────────────────────────────────────────────────────────

    def _inner(self, index: int) -> REPLEnvironment:
        return self.environments[index]._env

    def _check_mode(self, mode: Mode) -> None:
        if self._mode not in (None, mode):
            plain, awaited = "reset, step and close", "areset, astep and aclose"
            first_call, other = ("areset", awaited) if mode == "plain" else ("reset", plain)
            raise RuntimeError(f"these episodes were begun by {first_call}; go on with {other}")

    @contextmanager
    def _recording_ended(self, numbers: Iterable[int]) -> Iterator[None]:
        """Record which of these environments lose their episode if a reset is interrupted."""
        try:
            yield
        except BaseException:
            for index in numbers:
                if self._inner(index)._state is None:
                    self._outcomes.interrupt(index)
            raise

    def _end(self) -> None:
        self._mode, self._outcomes = None, VectorOutcomes(len(self), closed=True)
        self._threads.end()

    def _reset_arguments(
        self,
        mode: Mode,
        requests: Requests | None,
        only: Iterable[int] | None,
        shared: Mapping[str, Any],
    ) -> dict[int, dict[str, Any]]:
        """Return the arguments of each reset, by the number of its environment."""
        self._check_mode(mode)
        resets = resets_of(len(self), requests, only, shared, self._request_names)
        self._outcomes.begin_resets(resets)
        return resets

    def _begin_effects(
        self, mode: Mode, index: int, request: dict[str, Any]
    ) -> Effects[REPLObservation]:
        return self._inner(index)._episodes.begin_episode(mode, request)

    def _record_resets(
        self,
        mode: Mode,
        numbers: Iterable[int],
        outcomes: Sequence[REPLObservation | BaseException],
    ) -> list[Result | None]:
        if not all(isinstance(outcome, BaseException) for outcome in outcomes):
            self._mode = mode
        if any(isinstance(outcome, SandboxError) for outcome in outcomes):
            self._shared.clear()  # may belong to a template; the next reset makes new ones
        return self._outcomes.record_resets(numbers, outcomes)

    def _actions_by_index(
        self, actions: Sequence[str | REPLAction | None], timeout_s: float | None
    ) -> dict[int, REPLAction]:
        """Return the actions to take, by environment."""
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        actions_by_index = self._outcomes.actions_by_number(actions)
        self._outcomes.clear()
        return actions_by_index

    def _run_effects(self, effects: Sequence[Effects[Any]]) -> list[Any]:
        return run_batch(effects, self._batch, self._threads.threads)


async def _gather(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*coroutines, return_exceptions=True)
