"""`REPLEnvironment`: episodes on sessions of the engine, with blocking and awaited methods.

One episode uses either the blocking or the awaited methods. `repl_env.env.operations` and
`repl_env.env.step` implement them; `repl_env.episode.rules` has the rules of an episode.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import repl_sandbox
from repl_env.common.display import DisplayedByRepr, set_module
from repl_env.common.values import one_timeout
from repl_env.env.async_episode import ChildEnvFactory
from repl_env.env.attributes import EnvironmentAttributes
from repl_env.env.current_episode import Mode
from repl_env.env.operations import EpisodeEffects, EpisodeOperations
from repl_env.env.options import ConstructorOptions, EpisodeEquipment
from repl_env.episode import effects
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.episode.contexts import Given, Preview
from repl_env.episode.effects import Effects, run_async, run_blocking
from repl_env.episode.sandboxes import SandboxProvider
from repl_env.interfaces import EnvironmentMetadata, Transform
from repl_env.llm.spec import LLM
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLObservation,
)
from repl_env.rlm.answerers import Provider, UserFunction
from repl_env.rubrics import Rubric, own_rubric
from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox
from repl_sandbox.tables import Settable
from repl_sandbox.types import JSON, Answers, Missing

if TYPE_CHECKING:
    from repl_env.rlm.budget import Budget, Price


@set_module("repl_env")
class REPLEnvironment(DisplayedByRepr, EnvironmentAttributes):
    """Episodes of a policy that writes Python code, each in its own session.

    ```python
    environment = REPLEnvironment(task_prompt="How many words?")
    environment.reset(context="a long text", expected_answer="3")
    observation = environment.step(REPLAction(code="FINAL(len(context.split()))"), timeout_s=5)
    print(observation.reward, observation.done, environment.state.final_answer)  # 1.0 True 3
    environment.close()
    ```
    The positional arguments are OpenEnv's. Sessions come from `sandbox`, or from one that equal
    environments share and that the first reset starts with `isolation`, `require`, `image`,
    `runtime`, `limits`, `policy`, `preload` and `history` (see `repl_sandbox.Sandbox`).

    Args:
        context: the default context of a reset.
        task_prompt: the default task of a reset.
        max_iterations: steps per episode. The last one runs its code.
        max_output_length: characters of each output that are shown.
        context_preview_length: characters of the context's preview.
        rubric: scores the steps; each environment has its own copy. None: REPLRubric.
        llm_query_fn, llm_batch_fn, subcall_fn, subcall_batch_fn: answer sub-calls, on the host.
        rlm_max_depth, rlm_max_iterations: levels of child runs, and turns of each.
        tools: further host functions for the session, by name; JSON in and out.
        budget: the limit of each episode's sub-calls, including nested ones, and of the time of its
            cells. None: no limit.
        prices: of models, by name, for `budget.usd` and usage reports.
        answers: "compatible" also accepts answers that the code prints; "strict" does not.
        preview: "none", "head", "head+tail" or "structure".
        max_concurrent_subcalls: sub-calls of an episode that may run concurrently; further ones
            wait. A blocking `llm_query_fn` is called from as many threads: use 1 for a function
            that is not thread-safe. Each child run has the same limit of its own.
        transform: applied to each observation before it is scored.

    The attributes of `EnvironmentAttributes`, which are OpenEnv's, are assignable.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        context: Given | None = None,
        task_prompt: str | None = None,
        max_iterations: int = DEFAULT_MAX_ITERATIONS,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
        context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH,
        rubric: Rubric | None = None,
        llm_query_fn: UserFunction | None = None,
        llm_batch_fn: UserFunction | None = None,
        subcall_fn: UserFunction | None = None,
        subcall_batch_fn: UserFunction | None = None,
        rlm_max_depth: int = 1,
        rlm_max_iterations: int | None = None,
        *,
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
        transform: Transform[REPLObservation] | None = None,
    ) -> None:
        options = ConstructorOptions.of(locals())
        super().__init__(options.transform, own_rubric(options.rubric))
        self._equip(EpisodeEquipment.of(options))

    def _equip(self, equipment: EpisodeEquipment) -> None:
        """Use `equipment` for later episodes; there is none yet."""
        self._equipment, self._episodes = equipment, self._operations_with(equipment)

    def _operations_with(self, equipment: EpisodeEquipment) -> EpisodeEffects:
        """Return the effects of all calls. Subclasses may wrap `_basic_operations_with`."""
        return self._basic_operations_with(equipment)

    def _basic_operations_with(self, equipment: EpisodeEquipment) -> EpisodeOperations:
        # A weak reference, so that a dropped environment ends at once, with its session.
        me = ref(self)
        return EpisodeOperations(me, equipment, partial(ChildEnvFactory.of, me))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._condition}>"

    @property
    def _condition(self) -> str:
        """A short description for repr: isolation tier, iteration, stop reason."""
        current = self._episodes.slot.current
        if current is None:
            return "without an episode"
        episode = current.episode
        ended = f", done: {episode.stop_reason}" if episode.done else ""
        tier, max_iterations = episode.isolation.get("tier"), episode.config.max_iterations
        return f"{tier}, open, iteration {episode.iteration} of {max_iterations}{ended}"

    # ── the interface ────────────────────────────────────────────────────────────────────────────

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        context: Given | None = None,
        task_prompt: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        """Begin an episode in a new session; the previous session is closed.

        Further arguments are those of `repl_env.episode.call_options.ResetOptions`. Unknown
        arguments are ignored, because trainers pass all columns of their data, and named in
        `metadata["ignored"]`.

        Raises:
            TypeError, ValueError, OSError: naming the argument; the previous episode is untouched.
            IsolationError: this system cannot provide the requested isolation.
        """
        arguments = options_in(ResetOptions, locals()) | kwargs
        return run_blocking(self._episodes.begin_episode("plain", arguments))

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        context: Given | None = None,
        task_prompt: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        """`reset` for an event loop; `step_async` then steps the episode.

        ```python
        environment = REPLEnvironment()
        await environment.reset_async(context="a b c", expected_answer="3")
        action = REPLAction(code="FINAL(len(context.split()))")
        print((await environment.step_async(action)).reward)  # 1.0
        await environment.close_async()
        ```
        """
        arguments = options_in(ResetOptions, locals()) | kwargs
        return await run_async(self._episodes.begin_episode("async", arguments))

    def step(
        self,
        action: REPLAction,
        timeout_s: float | None = None,
        *,
        timeout: float | None = None,
        on_output: effects.OnOutput | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        """Run the action's code, or submit its answer.

        `timeout_s` limits execution in seconds, without the time of sub-calls; None means the
        sandbox's limit. `timeout` is another name of it. `on_output` is called with "stdout" or
        "stderr" and each piece of text while the code runs; an exception of `on_output` ends the
        step. Unknown arguments are ignored and named in `metadata["ignored"]`.

        Raises:
            NotReset: no episode has begun.
            EpisodeDone: the episode is over; the error carries its last result.
            EpisodeAborted: the session is lost, through no fault of the policy.
            RuntimeError: `reset_async` began the episode.
            TypeError, ValueError: an argument is invalid, or `on_output` is asynchronous; nothing
                was run.
        """
        limit = one_timeout(timeout_s, timeout)
        return run_blocking(self._episodes.take_step("plain", action, limit, kwargs, on_output))

    async def step_async(
        self,
        action: REPLAction,
        timeout_s: float | None = None,
        *,
        timeout: float | None = None,
        on_output: effects.OnOutput | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        """`step` for an episode that `reset_async` began.

        The event loop waits while it calls `on_output`.
        """
        limit = one_timeout(timeout_s, timeout)
        return await run_async(self._episodes.take_step("async", action, limit, kwargs, on_output))

    def use_subcall_provider(self, provider: Provider) -> None:
        """Let `subcall_provider` answer the sub-calls of later episodes."""
        self._equipment.subcall_provider = provider

    def use_sandbox_provider(self, sandbox_provider: SandboxProvider) -> None:
        """Take the sessions of later episodes from `sandbox_provider`."""
        self._equipment.sandbox_provider = sandbox_provider

    def save(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """Write the episode to the file `path` atomically; the episode continues.

        The file holds the variables, the regular files of the workspace, the context, the state of
        the episode and the expected answer: keep it out of reach of the policy's code. It holds no
        token, key or function. Returns the variables and files that could not be saved, with the
        reasons.
        ```python
        environment.step(REPLAction(code="words = context.split()"))
        environment.save("episode.ckpt")
        environment.load("episode.ckpt")  # or in another environment of equal settings
        print(environment.step(REPLAction(code="FINAL(len(words))")).reward)  # 1.0
        ```
        Raises:
            NotReset: no episode has begun.
            CheckpointError: the session could not be saved, or its files exceed 256 MiB.
            TypeError: the expected answer, or the rubric's state, is not JSON.
            OSError: the file cannot be written.
        """
        return run_blocking(self._episodes.save("plain", path))

    async def save_async(self, path: str | os.PathLike[str]) -> tuple[Missing, ...]:
        """`save` for an episode that `reset_async` began."""
        return await run_async(self._episodes.save("async", path))

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        answer_schema: Any = None,
    ) -> tuple[Missing, ...]:
        """Continue the episode in the file `path`, in a new session.

        The current session is closed once the other is ready; a failure leaves it as it is.
        `hf_token`, `llm_model`, `llm`: as in `reset`; the file holds only the name of the model.
        `answer_schema`: given again if it was a type and not a JSON schema. Functions and rubric
        are those of this environment. Returns the variables that could not be restored, with the
        reasons.

        Raises:
            CheckpointError: the file is damaged, of another version, or does not load.
            ValueError: this environment lacks a function or schema of the episode, or accepts other
                forms of answers.
            OSError: the file cannot be read.
        """
        model = LLM.of(llm, llm_model, hf_token)
        return run_blocking(self._episodes.load("plain", path, answer_schema, model))

    async def load_async(
        self,
        path: str | os.PathLike[str],
        *,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        answer_schema: Any = None,
    ) -> tuple[Missing, ...]:
        """`load` for an event loop; `step_async` then steps the episode."""
        model = LLM.of(llm, llm_model, hf_token)
        return await run_async(self._episodes.load("async", path, answer_schema, model))

    def rollback(self, cells: int = 1) -> tuple[str, ...]:
        """Undo the last `cells` cells: variables and files return to their state before them.

        The episode does not go back: its steps, costs, rewards and answer stay. The environment
        must keep so many earlier states (`history=`). Returns descriptions of what could not be
        restored, such as open sockets.
        ```python
        environment = REPLEnvironment(history=2)
        environment.reset(context="a b c")
        environment.step(REPLAction(code="words = context.split()"))
        environment.step(REPLAction(code="del words"))
        environment.rollback()
        print("words" in environment.variables)  # True
        environment.close()
        ```
        Raises:
            NotReset: no episode has begun.
            SandboxError: no snapshot of that state exists.
            TypeError, ValueError: `cells` is no count, or more than the sandbox keeps.
            RuntimeError: `reset_async` began the episode.
        """
        return run_blocking(self._episodes.rollback("plain", cells))

    async def rollback_async(self, cells: int = 1) -> tuple[str, ...]:
        """`rollback` for an episode that `reset_async` began."""
        return await run_async(self._episodes.rollback("async", cells))

    def branch(self, *, seed: int | None = None) -> REPLEnvironment:
        """Copy this environment in the middle of its episode; both continue independently.

        The session of the copy is a branch (`repl_sandbox.Session.branch`): the variables, the
        files, and the state of the random numbers unless `seed` gives another. The episode keeps
        its position:
        iterations, answer, usage, names, expected answer; the rubric is a copy with its state.
        Tools and functions for sub-calls are the same objects, called for the new episode. Its id
        is this episode's with "/" and a number unique among the branches of this episode: "e1/2",
        and for a branch of that "e1/2/1". Close both, in any order.
        ```python
        environment.step(REPLAction(code="words = context.split()"))
        other = environment.branch(seed=1)
        print(other.step(REPLAction(code="FINAL(len(words))")).reward)  # 1.0
        print(environment.state.final_answer)  # None
        other.close()
        ```
        Raises:
            NotReset: no episode has begun.
            SandboxError: the session cannot branch (`Sandbox(recovery=, branches=)`).
            TypeError: `seed` is not a count, or the rubric cannot be copied.
            ValueError: an answer of a cancelled step waits for the next one.
            RuntimeError: `reset_async` began the episode.
        """
        return run_blocking(self._branching("plain", seed))

    async def branch_async(self, *, seed: int | None = None) -> REPLEnvironment:
        """`branch` for an episode that `reset_async` began."""
        return await run_async(self._branching("async", seed))

    def _branching(self, mode: Mode, seed: int | None) -> Effects[Self]:
        self._episodes.slot.current_in(mode)
        other = self.new_sibling()
        other.rubric = own_rubric(self.rubric)
        yield from self._episodes.branch(mode, seed, other._episodes.slot)
        return other

    def new_sibling(self) -> Self:
        """Return another environment with the same equipment and no episode."""
        other = copy.copy(self)
        other._equip(copy.copy(self._equipment))
        return other

    @staticmethod
    def _build_hf_chat_fn(hf_token: str | None, llm_model: str | None = None) -> Any:
        """Return a model for a Hugging Face token; OpenEnv's name, which users replace."""
        from repl_env.llm.factory import model_of

        return model_of(LLM(model=llm_model, api_key=hf_token))

    def close(self) -> None:
        """Close the session. A given or shared sandbox stays open."""
        self._episodes.slot.check_mode("plain")
        run_blocking(self._episodes.close_current())

    async def close_async(self) -> None:
        """`close` for an event loop."""
        await run_async(self._episodes.close_current())

    def follow_up(
        self,
        task_prompt: str,
        *,
        max_iterations: int | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, Settable] | None = None,
    ) -> REPLObservation:
        """Begin another episode in the current session; see `LocalREPLEnv.follow_up`.

        Raises:
            NotReset: no episode has begun.
            TypeError, ValueError: naming the argument; the episode continues unchanged.
            SandboxError: the session is gone.
        """
        options = FollowUpOptions.of(locals())
        return run_blocking(self._episodes.follow_up("plain", options))

    async def follow_up_async(
        self,
        task_prompt: str,
        *,
        max_iterations: int | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, Settable] | None = None,
    ) -> REPLObservation:
        """`follow_up` for an episode that `reset_async` began."""
        options = FollowUpOptions.of(locals())
        return await run_async(self._episodes.follow_up("async", options))

    def draft(self) -> JSON:
        """Return the value of `answer["content"]` in the session, or None.

        Raises:
            NotReset: no episode has begun.
            SessionBusy: a cell is running.
        """
        found: JSON = run_blocking(
            effects.read_draft(self._episodes.slot.current_in("plain").session)
        )
        return found

    async def draft_async(self) -> JSON:
        """`draft` for an episode that `reset_async` began."""
        found: JSON = await run_async(
            effects.read_draft(self._episodes.slot.current_in("async").session)
        )
        return found

    async def give_up_async(self) -> REPLObservation:
        """End the episode at its present position; see `AsyncLocalREPLEnv.give_up`."""
        return await run_async(self._episodes.give_up("async"))

    def get_metadata(self) -> EnvironmentMetadata:
        """Return name, description and version, in OpenEnv's form."""
        return EnvironmentMetadata(
            name="repl_env",
            description="Python REPL environment for RLM-style code execution",
            version=repl_sandbox.__version__,  # of the one distribution
        )
