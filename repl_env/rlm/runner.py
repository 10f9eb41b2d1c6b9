"""`RLM`: recursive language models, the public entry point.

This module checks arguments; `repl_env.rlm.conversation` has the lifetime of a tree.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from repl_env.common.display import set_module
from repl_env.common.threads import RUNS
from repl_env.common.values import at_least, of_kind
from repl_env.env.options import checked_tools
from repl_env.episode.contexts import Given
from repl_env.episode.initial_files import Files
from repl_env.interfaces import Message
from repl_env.llm.base import REQUESTS, ChatModel, ModelFunction, RequestGate
from repl_env.llm.spec import LLM
from repl_env.rlm.answerers import Provider
from repl_env.rlm.budget import Budget, Price
from repl_env.rlm.config import Blocks, Prompts, RLMRunResult, RunConfig
from repl_env.rlm.conversation import MakeEnvironment, RunConversation, RunTreeConfig, model_given
from repl_env.rlm.ledger import Ledger
from repl_env.rlm.model_call import EventHandler
from repl_env.rlm.trajectory_events import GivenTask

if TYPE_CHECKING:
    from repl_env.rlm.trajectory_writer import TrajectoryWriter
    from repl_sandbox import Limits


Model: TypeAlias = "ChatModel | ModelFunction | LLM"

# A sub-call may be a child run of minutes to hours, which the budget limits.
HOST_TIMEOUT = 24 * 3600.0


@set_module("repl_env.rlm")
class RLM:
    """A model that works on questions in a REPL, and calls models on parts of them.

    ```python
    with OpenAIModel("gpt-5-mini", base_url=url, api_key=key) as model:
        result = RLM(model).run("Which chapters mention the sea?", context=pathlib.Path("book.txt"))
        print(result.final_answer)  # yes
    ```
    The method is described in arXiv 2512.24601. Safe to use from several threads and tasks: each
    run has its own session, ledger and conversation.

    Args:
        model: works in the runs: a `ChatModel`, a function of `(messages)` or `(messages, model)`,
            or an `LLM` that describes one. The creator closes a `ChatModel`; the model of an `LLM`
            is open while runs need it.
        sub_model: answers plain questions of the code; None: `model`.
        environment: makes the environment of a run, given the provider of its sub-calls; None:
            `AsyncLocalREPLEnv` with `arguments`.
        budget: limits each run together with all runs below it.
        prices: of models, by name.
        max_iterations: turns of each run; then one more, which only asks for an answer.
        max_depth: levels of runs; 1 is the root alone.
        blocks: the code blocks of a reply to run, see `repl_env.rlm.config.RunConfig`.
        tools: functions for the sessions of all runs, by name, plain or async; the model sees their
            docstrings.
        trajectory: a file to write, or a `TrajectoryWriter`.
        on_event: receives every event, see `repl_env.rlm.model_call`. A plain function,
            called on the event loop of the run, which waits for it.
        system_prompt: replaces `RLM_SYSTEM_PROMPT`.
        examples: conversations for few-shot prompting, such as the `messages` of earlier results.
            They precede the question as separate turns, which small models imitate.
        prompts: "full" or "short", for models below a billion parameters.
        prefix: the beginning of each reply of the model, such as "```repl\\n".
        run_config: further settings of runs; arguments given here override its fields.
        gate: limits concurrent requests; None: the gate of the process, with 64 slots.
        arguments: of `AsyncLocalREPLEnv`: isolation, require, limits, preload, rubric...

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        model: Model,
        *,
        sub_model: Model | None = None,
        environment: MakeEnvironment | None = None,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        max_iterations: int = 30,
        max_depth: int = 2,
        blocks: Blocks = "all",
        tools: Mapping[str, Callable[..., Any]] | None = None,
        trajectory: str | os.PathLike[str] | TrajectoryWriter | None = None,
        on_event: EventHandler | None = None,
        system_prompt: str | None = None,
        examples: Sequence[Sequence[Message]] | None = None,
        prompts: Prompts | None = None,
        prefix: str | None = None,
        run_config: RunConfig | None = None,
        gate: RequestGate | None = None,
        **arguments: Any,
    ) -> None:
        worker = model_given(model, "model")
        answerer = None if sub_model is None else model_given(sub_model, "sub_model")
        _check_kinds(environment, on_event, system_prompt, run_config, gate)
        _check_trajectory(trajectory)
        max_depth = at_least(max_depth, 1, "max_depth")
        budget = Budget() if budget is None else budget
        Ledger(budget, prices=prices)  # report errors now, not at the first run
        config = _with_overrides(
            run_config, max_iterations, blocks, examples=examples, prompts=prompts, prefix=prefix
        ).within(budget)
        checked_functions = checked_tools(tools)
        _check_arguments(self, arguments)
        self._tree_config = RunTreeConfig(
            model_argument=model,
            model=worker,
            sub_model=answerer,
            make=_environment_maker(environment, arguments, checked_functions),
            budget=budget,
            prices=dict(prices or {}),
            run_config=config,
            max_depth=max_depth,
            tools=checked_functions,
            trajectory=trajectory,
            on_event=on_event,
            system_prompt=system_prompt,
            gate=gate or REQUESTS,
            scores=arguments.get("rubric") is not None,
        )

    def __repr__(self) -> str:
        config = self._tree_config
        turns = config.run_config.max_iterations
        bounds = f"max_depth {config.max_depth}, max_iterations {turns}"
        return f"<RLM model {config.model.name!r}, {bounds}>"

    def run(
        self,
        question: str,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        timeout: float | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
        task: GivenTask | None = None,
        group_id: str | None = None,
    ) -> RLMRunResult:
        """Answer a question; works in any context, in notebooks too.

        ```python
        result = rlm.run("How many chapters?", contexts={"a": "One", "b": "Two"}, timeout_s=60)
        print(result.final_answer, result.stop_reason, result.usage.calls)  # yes answer 1
        ```
        Args:
            question: the question.
            context, contexts, files, expected_answer, answer_schema, seed: as in
                `LocalREPLEnv.reset`.
            timeout_s, or timeout: seconds of wall time; then the draft answer counts.
            llm: the model for this run alone.
            task, group_id: the task and the group of samples that the run belongs to, for its
                result, its trajectory and training samples: a name, a dict of facts ("name" or
                "id", "split", "difficulty", "group", "group_id"), or a task of `repl_env.tasks`.
                Neither the session nor the model sees them.

        Raises:
            ModelError: the root's model gave no answer; `.result` is the partial result.
            EpisodeAborted: the root's session was lost; likewise.
            TypeError, ValueError, OSError: naming the argument.
        """
        return RUNS.wait_for(
            self.arun(
                question,
                context,
                contexts=contexts,
                files=files,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
                timeout=timeout,
                llm=llm,
                seed=seed,
                task=task,
                group_id=group_id,
            )
        )

    async def arun(
        self,
        question: str,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        timeout_s: float | None = None,
        timeout: float | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
        task: GivenTask | None = None,
        group_id: str | None = None,
    ) -> RLMRunResult:
        """`run` for an event loop. Cancelling it ends every run and request below it.

        ```python
        runs = [rlm.arun("Is the sea named?", context=text) for text in ("A road.", "The sea.")]
        print([result.final_answer for result in await asyncio.gather(*runs)])  # ['yes', 'yes']
        ```
        """
        conversation = self.conversation(
            context, contexts=contexts, files=files, llm=llm, seed=seed
        )
        async with conversation:
            return await conversation.ask(
                question,
                expected_answer=expected_answer,
                answer_schema=answer_schema,
                timeout_s=timeout_s,
                timeout=timeout,
                task=task,
                group_id=group_id,
            )

    def conversation(
        self,
        context: Given | None = None,
        *,
        contexts: Mapping[str, Given] | None = None,
        files: Files | None = None,
        llm: LLM | None = None,
        seed: int | None = None,
    ) -> RunConversation:
        """Begin a conversation: several questions on one context, in one session, within one
        budget.
        ```python
        async with rlm.conversation(context="A road. The sea.") as talk:
            first = await talk.ask("Is the sea named?")
            second = await talk.ask("And a road?")  # in the same session
            print(first.final_answer, second.final_answer)  # yes yes
        ```
        """
        initial_arguments = {"context": context, "contexts": contexts, "files": files, "seed": seed}
        return RunConversation(self._tree_config, initial_arguments, llm)


class _LocalEnvFactory:
    """Makes environments on this machine."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from repl_env.local import AsyncLocalREPLEnv

        self._arguments = dict(arguments)
        if self._arguments.get("sandbox") is None and self._arguments.get("limits") is None:
            self._arguments["limits"] = _limits()
        AsyncLocalREPLEnv(**self._arguments)  # report wrong arguments now, not at the first run

    def __call__(self, provider: Provider) -> Any:
        from repl_env.local import AsyncLocalREPLEnv

        return AsyncLocalREPLEnv.with_provider(provider, **self._arguments)


def _check_arguments(rlm: RLM, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError for a name that environments lack too.

    Their error would name their own class.
    """
    from repl_env.local import AsyncLocalREPLEnv

    parameters = inspect.signature(AsyncLocalREPLEnv).parameters
    for name in arguments:
        if name not in parameters:
            raise TypeError(f"{type(rlm).__name__} has no argument {name!r}")


def _check_kinds(
    environment: object, on_event: object, system_prompt: object, run_config: object, gate: object
) -> None:
    """Raise TypeError naming an argument that is given and of another type."""
    if environment is not None and not callable(environment):
        raise TypeError("environment must be a function that makes one")
    _check_on_event(on_event)
    for name, value, kind in (
        ("system_prompt", system_prompt, str),
        ("run_config", run_config, RunConfig),
        ("gate", gate, RequestGate),
    ):
        if value is not None:
            of_kind(value, kind, name)


def _with_overrides(
    run_config: RunConfig | None, max_iterations: int, blocks: Blocks, **overrides: Any
) -> RunConfig:
    """Return `run_config` with other fields; those of `overrides` unless None."""
    changed = {name: value for name, value in overrides.items() if value is not None}
    config = run_config or RunConfig()
    return replace(config, max_iterations=max_iterations, blocks=blocks, **changed)


def _environment_maker(
    environment: MakeEnvironment | None, arguments: Mapping[str, Any], functions: Mapping[str, Any]
) -> MakeEnvironment:
    """Return `environment`, or the maker of local environments with these arguments."""
    maker = environment or _LocalEnvFactory({**arguments, "tools": functions})
    if environment is not None and arguments:
        raise TypeError(f"environment goes without {', '.join(sorted(arguments))}")
    return maker


def _check_on_event(handler: object) -> None:
    if handler is not None and not callable(handler):
        raise TypeError(f"on_event must be a function of events, not {type(handler).__name__}")
    if inspect.iscoroutinefunction(handler):
        raise TypeError("on_event must be a plain function: it is called, and not awaited")


def _check_trajectory(destination: object) -> None:
    if destination is None or isinstance(destination, (str, os.PathLike)):
        return
    from repl_env.rlm.trajectory_writer import TrajectoryWriter

    if not isinstance(destination, TrajectoryWriter):
        kind = type(destination).__name__
        raise TypeError(f"trajectory must be a path or a TrajectoryWriter, not {kind}")


def _limits() -> Limits:
    from repl_sandbox import Limits

    return Limits(host_timeout=HOST_TIMEOUT)
