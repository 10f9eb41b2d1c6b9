"""`AsyncEpisode`: the awaited calls on an episode, and environments like that of an episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from repl_env.episode.effects import OnOutput
from repl_env.llm.spec import LLM
from repl_env.models import REPLAction, REPLObservation, StepResult, action_of, result_of, showing
from repl_env.rlm.answerers import Provider
from repl_env.rubrics import REPLRubric
from repl_sandbox.types import JSON

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment
    from repl_env.llm.base import ChatModel
    from repl_env.rlm.ledger import LedgerAccount


# `AsyncEpisode`: the awaited calls on an episode of a `REPLEnvironment`.

Result = StepResult[REPLObservation]


class AsyncEpisode:
    """Base of `AsyncLocalREPLEnv` and of the environments of child runs."""

    _env: REPLEnvironment

    @property
    def account(self) -> LedgerAccount:
        """The ledger account of the episode's sub-calls; see `REPLEnvironment.account`."""
        return self._env.account

    async def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Take one step: run the action's code, or submit its answer.

        ```python
        await env.step(REPLAction(code="words = context.split()"))
        result = await env.step(REPLAction(is_final=True, final_answer=3))
        print(result.reward, result.done)  # 1.0 True
        ```
        Args:
            action: `REPLAction(code=...)`; or with `is_final=True` and `final_answer`; or with
                `format_error`, for a reply that held no action.
            timeout_s, or timeout: seconds that the code may execute, waiting for the host not
                counted; None: `Limits.timeout`, 30 by default. Variables outlive a time-out.
            on_output: called with ("stdout" or "stderr", text) as output arrives; a plain
                function, for which the event loop waits.

        Returns the observation, with the reward of this step and `done`. Code that raises, times
        out or crashes is an observation with an `error_kind`, not an exception.

        Raises:
            NotReset, EpisodeDone: no episode has begun, or it is over.
            EpisodeAborted: the session is lost; a reset begins another one.
            TypeError, ValueError: naming the argument; nothing was run.
        """
        observation = await self._env.step_async(
            action, timeout_s, timeout=timeout, on_output=on_output
        )
        return result_of(observation)

    async def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run `code` in one step: `step(REPLAction(code=code))`, with its arguments and errors.

        ```python
        result = await env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.reward)  # 1.0
        ```
        """
        return await self.step(
            action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output
        )

    async def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step.

        An answer that `answer_schema` refuses is a step with the `error_kind` "answer", and the
        episode goes on. Raises NotReset, EpisodeDone.
        """
        action = REPLAction(is_final=True, final_answer=answer)
        return result_of(await self._env.step_async(action))

    async def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return await self.execute(showing(name))

    async def draft(self) -> JSON:
        """The present value of `answer["content"]`, or None.

        ```python
        await env.execute("answer['content'] = 'at least two'")
        print(await env.draft())  # at least two
        ```
        """
        return await self._env.draft_async()

    async def run_after(self, code: str) -> None:
        """Run code in the session of an episode that is over, for later questions on it."""
        await self._env.session.run(code)

    async def give_up(self) -> Result:
        """End the episode as if its iterations were used up, and score it.

        `answer["content"]` counts as the answer if it is a valid one.
        ```python
        await env.execute("answer['content'] = '3'")
        result = await env.give_up()
        print(result.reward, result.done)  # 1.0 True
        ```
        """
        return result_of(await self._env.give_up_async())

    async def end_calls(self) -> None:
        """Cancel the sub-calls that run concurrently with the code that began them."""
        if self._env.subcalls is not None:
            await self._env.subcalls.end_calls()

    async def close(self) -> None:
        """Close the session. Safe to call twice."""
        await self._env.close_async()


class ChildEnv(AsyncEpisode):
    """The environment of one child run."""

    def __init__(self, environment: REPLEnvironment) -> None:
        self._env = environment

    async def reset(self, **arguments: Any) -> Result:
        """Begin an episode; see `REPLEnvironment.reset`."""
        return result_of(await self._env.reset_async(**arguments))


# `ChildEnvFactory`: makes environments for child runs, and the model of an episode.


class ChildEnvFactory:
    """Makes environments like that of an episode: `ChildEnvironments` of `rlm/children.py`.

    The session of the episode holds this object for its sub-calls, so the object must reference
    neither the episode nor the environment: it would keep them alive.

    Args:
        template: the environment to copy, without episode, context, rubric or transform.
        make_model: makes a model from a Hugging Face token and a model name.
    """

    def __init__(self, template: REPLEnvironment, make_model: Callable[..., Any]) -> None:
        self._template, self._make_model = template, make_model

    @classmethod
    def of(cls, environment: ref[REPLEnvironment]) -> ChildEnvFactory:
        """Return the factory for the episodes of `environment`, which must be alive."""
        parent = environment()
        assert parent is not None  # a call on the environment is active
        template = parent.new_sibling()
        template.transform, template.rubric = None, None
        template.settings = replace(parent.settings, context=None, task_prompt=None)
        return cls(template, parent._build_hf_chat_fn)

    def child(self, provider: Provider) -> ChildEnv:
        """Return an environment whose sub-calls `provider` answers.

        Its sessions come from the same sandbox and have no default context; its calls are awaited,
        and it scores nothing.
        """
        environment = self._template.new_sibling()
        environment.rubric = REPLRubric()
        environment.use_subcall_provider(provider)
        return ChildEnv(environment)

    def model(self, llm: LLM) -> ChatModel:
        """Return the model that `llm`, an argument of a reset, names; see `model_of`.

        Raises:
            ImportError: naming the library to install.
            ValueError: `llm` is incomplete.
        """
        from repl_env.llm.base import as_model

        if llm.base_url is None and not llm.headers and not llm.sampling:
            return as_model(self._make_model(llm.api_key, llm.model))
        from repl_env.llm.factory import model_of

        found = model_of(llm)
        if found is None:
            raise ValueError("llm says neither where a model is nor with which key to ask for it")
        return found
