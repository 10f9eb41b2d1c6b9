"""`RLM`: recursive language models, for callers.

Here is what they say, checked, and how they ask; `repl_env.rlm.conversation` has a tree's life.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from repl_env.common.argument_checks import at_least, of_kind
from repl_env.concurrency.background_loop import RUNS
from repl_env.env.options import checked_tools
from repl_env.episode.contexts import Given
from repl_env.episode.initial_files import Files
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, ModelFunction
from repl_env.llm.model_spec import LLM
from repl_env.llm.request_gate import REQUESTS, RequestGate
from repl_env.rlm.budget.budget_limits import Budget, Price
from repl_env.rlm.budget.ledger import Ledger
from repl_env.rlm.conversation import RunConversation
from repl_env.rlm.events import Watcher
from repl_env.rlm.run_config import Blocks, Prompts, RunConfig
from repl_env.rlm.run_result import RLMRunResult
from repl_env.rlm.subcalls.subcall_settings import Provider
from repl_env.rlm.trajectory.task_facts import GivenTask
from repl_env.rlm.tree_config import MakeEnvironment, RunTreeConfig, model_given

if TYPE_CHECKING:
    from repl_env.rlm.trajectory.trajectory_writer import TrajectoryWriter
    from repl_sandbox import Limits

Model: TypeAlias = "ChatModel | ModelFunction | LLM"

# A call of the session may be a run of its own: minutes to hours, which the budget limits.
HOST_TIMEOUT = 24 * 3600.0


class RLM:
    """A model that works on questions in a REPL, and calls models on parts of them.

    ```python
    with OpenAIModel("gpt-5-mini", base_url=url, api_key=key) as model:
        result = RLM(model).run("Which chapters mention the sea?", context=pathlib.Path("book.txt"))
        print(result.final_answer)
    ```
    The source of the method is arXiv 2512.24601. Safe to use from several threads and tasks: each
    run has its own session, ledger and conversation.

    Args:
        model: works in the runs: a `ChatModel`, a function of `(messages)` or `(messages, model)`,
            or an `LLM` that says where one is. A `ChatModel` is its maker's to close; what an `LLM`
            names is there while runs need it.
        sub_model: answers plain questions of the code; None: `model`.
        environment: makes the environment of a run, given the provider of its sub-calls; None:
            `AsyncLocalREPLEnv` with `arguments`.
        budget: what each run may spend with all runs below it.
        prices: of models, by name.
        max_iterations: turns of each run; then one more, in which only an answer is asked for.
        max_depth: levels of runs; 1 is the root alone.
        blocks: which blocks of a reply are run, see `repl_env.rlm.run_config.RunConfig`.
        tools: functions for the sessions of all runs, by name, plain or async; their docstrings are
            shown to the model.
        trajectory: a file to write, or a `TrajectoryWriter`.
        watch: told of everything that happens, see `repl_env.rlm.events`. A plain function, called
            on the event loop of the run, which waits for it.
        system_prompt: in place of `RLM_SYSTEM_PROMPT`.
        examples: conversations for few-shot prompting, such as the `messages` of earlier results.
            They stand before the question as turns of their own, which small models imitate.
        prompts: "full" or "short": what a model of less than a billion parameters can follow.
        prefix: what each reply of the model is begun with, such as "```repl\\n".
        manner: more on how runs work; the arguments that it has too go before its own.
        gate: how many requests may be in flight; None: that of the process, 64.
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
        watch: Watcher | None = None,
        system_prompt: str | None = None,
        examples: Sequence[Sequence[Message]] | None = None,
        prompts: Prompts | None = None,
        prefix: str | None = None,
        manner: RunConfig | None = None,
        gate: RequestGate | None = None,
        **arguments: Any,
    ) -> None:
        worker = model_given(model, "model")
        answerer = None if sub_model is None else model_given(sub_model, "sub_model")
        if environment is not None and not callable(environment):
            raise TypeError("environment must be a function that makes one")
        _check_watch(watch)
        for name, given, kind in (
            ("system_prompt", system_prompt, str),
            ("manner", manner, RunConfig),
            ("gate", gate, RequestGate),
        ):
            if given is not None:
                of_kind(given, kind, name)
        _check_trajectory(trajectory)
        max_depth = at_least(max_depth, 1, "max_depth")
        budget = Budget() if budget is None else budget
        Ledger(budget, prices=prices)  # what is wrong is told now, not at the first run
        own: dict[str, Any] = {"examples": examples, "prompts": prompts, "prefix": prefix}
        given = replace(
            manner or RunConfig(),
            max_iterations=max_iterations,
            blocks=blocks,
            **{name: value for name, value in own.items() if value is not None},
        )
        within = given.within(budget)
        checked = checked_tools(tools)
        _check_arguments(self, arguments)
        make = environment or _LocalEnvFactory({**arguments, "tools": checked})
        if environment is not None and arguments:
            raise TypeError(f"environment goes without {', '.join(sorted(arguments))}")
        self._plan = RunTreeConfig(
            given=model,
            model=worker,
            sub_model=answerer,
            make=make,
            budget=budget,
            prices=dict(prices or {}),
            manner=within,
            max_depth=max_depth,
            tools=checked,
            trajectory=trajectory,
            watch=watch,
            system_prompt=system_prompt,
            gate=gate or REQUESTS,
            scores=arguments.get("rubric") is not None,
        )

    def __repr__(self) -> str:
        plan = self._plan
        bounds = f"max_depth {plan.max_depth}, max_iterations {plan.manner.max_iterations}"
        return f"<RLM model {plan.model.name!r}, {bounds}>"

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
        """Answer a question; works wherever it is called, in notebooks too.

        Args:
            question: what is asked.
            context, contexts, files, expected_answer, answer_schema, seed: as in
                `LocalREPLEnv.reset`.
            timeout_s, or timeout: seconds of wall time; then the answer is what there is.
            llm: the model for this run alone.
            task, group_id: what the run is a sample of, for its result, its trajectory and the
                samples of that: a name, a dict of facts ("name" or "id", "split", "difficulty",
                "group", "group_id"), or a task of `repl_env.tasks`; and the group of samples of one
                task. The session and the model are told nothing of them.

        Raises:
            ModelError: the root's model gave no answer; `.result` is what there is.
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
        """`run` for an event loop. Cancelling it ends every run and request below it."""
        talk = self.conversation(context, contexts=contexts, files=files, llm=llm, seed=seed)
        async with talk:
            return await talk.ask(
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
        """Several questions on one context, in one session that goes on, within one budget."""
        about = {"context": context, "contexts": contexts, "files": files, "seed": seed}
        return RunConversation(self._plan, about, llm)


class _LocalEnvFactory:
    """Makes environments on this machine."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        from repl_env.env.async_local_env import AsyncLocalREPLEnv

        self._arguments = dict(arguments)
        if self._arguments.get("sandbox") is None and self._arguments.get("limits") is None:
            self._arguments["limits"] = _limits()
        AsyncLocalREPLEnv(**self._arguments)  # wrong arguments are told now, not at the first run

    def __call__(self, provider: Provider) -> Any:
        from repl_env.env.async_local_env import AsyncLocalREPLEnv

        return AsyncLocalREPLEnv.with_provider(provider, **self._arguments)


def _check_arguments(rlm: RLM, arguments: Mapping[str, Any]) -> None:
    """TypeError for a name that environments do not take either; they would name themselves."""
    from repl_env.env.async_local_env import AsyncLocalREPLEnv

    known = inspect.signature(AsyncLocalREPLEnv).parameters
    for name in arguments:
        if name not in known:
            raise TypeError(f"{type(rlm).__name__} has no argument {name!r}")


def _check_watch(given: object) -> None:
    if given is not None and not callable(given):
        raise TypeError(f"watch must be a function of events, not {type(given).__name__}")
    if inspect.iscoroutinefunction(given):
        raise TypeError("watch must be a plain function: it is called, and not awaited")


def _check_trajectory(given: object) -> None:
    if given is None or isinstance(given, (str, os.PathLike)):
        return
    from repl_env.rlm.trajectory.trajectory_writer import TrajectoryWriter

    if not isinstance(given, TrajectoryWriter):
        kind = type(given).__name__
        raise TypeError(f"trajectory must be a path or a TrajectoryWriter, not {kind}")


def _limits() -> Limits:
    from repl_sandbox import Limits

    return Limits(host_timeout=HOST_TIMEOUT)
