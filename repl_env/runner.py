"""`LocalRLMRunner` and its result, at the module path of OpenEnv's `repl_env.runner`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repl_env.common.display import set_module
from repl_env.common.threads import RUNS
from repl_env.common.values import (
    at_least,
    check_callable,
    of_kind,
    one_timeout,
    replace_surrogates,
)
from repl_env.episode.contexts import Given
from repl_env.llm.base import as_model
from repl_env.prompts import RLM_SYSTEM_PROMPT
from repl_env.recursive_backends import (
    BackendLimits,
    ChatFn,
    LocalChildRLMBackend,
    OnComplete,
    OnStart,
    RecursiveBackend,
    check_listeners,
)
from repl_env.rlm.children import system_messages
from repl_env.rlm.config import RLMRunResult, RunConfig
from repl_env.rlm.loop import RunLoop
from repl_env.rlm.model_call import AnyEvent, ContextNote, ModelReplied
from repl_env.rlm.providers import GivenProvider
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_env.local import AsyncLocalREPLEnv


# `LocalRLMRunner`: a run with the arguments and results of OpenEnv's `repl_env.runner`.
#
# The loop is `repl_env.rlm`'s. Unlike `RLM`, sub-calls go to a backend
# (`repl_env.recursive_backends`), there is no budget, and a batch may be shortened.

__all__ = ["LocalRLMRunner", "RLMRunResult"]

# The functions of a backend, in the order of `GivenProvider`'s arguments.
_SUBCALL_FUNCTIONS = ("query", "query_batched", "recursive_query", "recursive_query_batched")


@set_module("repl_env")
class LocalRLMRunner:
    """Runs a chat function as a recursive language model, in sessions on this machine.

    `llm_chat_fn(messages, model)` or `(messages)` returns text; it may be asynchronous, or a
    `ChatModel`. `max_children_total`, `max_children_per_batch`, `result_truncation_limit`
    (characters) and `per_child_timeout_s` limit child runs; `env_max_iterations_multiplier` is the
    steps allowed for each turn. `on_subcall_start(depth, model, prompt)` and
    `on_subcall_complete(depth, model, seconds, error)` are called for child runs. `verbose` prints
    a line for each turn.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        llm_chat_fn: ChatFn,
        *,
        system_prompt: str = RLM_SYSTEM_PROMPT,
        max_iterations: int = 30,
        max_depth: int = 2,
        depth: int = 0,
        env_max_iterations_multiplier: int = 5,
        max_batch_workers: int = 8,
        backend_factory: Callable[..., RecursiveBackend] | None = None,
        max_children_total: int | None = None,
        max_children_per_batch: int | None = None,
        result_truncation_limit: int | None = None,
        per_child_timeout_s: float | None = None,
        on_subcall_start: OnStart | None = None,
        on_subcall_complete: OnComplete | None = None,
        verbose: bool = False,
    ) -> None:
        self._model = as_model(llm_chat_fn, "llm_chat_fn")
        of_kind(system_prompt, str, "system_prompt")
        of_kind(verbose, bool, "verbose")
        if backend_factory is not None:
            check_callable(backend_factory, "backend_factory")
        check_listeners(on_subcall_start, on_subcall_complete)
        self._limits = BackendLimits(
            max_depth=max_depth,
            max_batch_workers=max_batch_workers,
            max_children_total=max_children_total,
            max_children_per_batch=max_children_per_batch,
            result_truncation_limit=result_truncation_limit,
            per_child_timeout_s=per_child_timeout_s,
        )
        self.llm_chat_fn = llm_chat_fn
        self.system_prompt = system_prompt
        self.max_iterations = at_least(max_iterations, 1, "max_iterations")
        self.max_depth = max_depth
        self.depth = at_least(depth, 0, "depth")
        self.env_max_iterations_multiplier = at_least(
            env_max_iterations_multiplier, 1, "env_max_iterations_multiplier"
        )
        self.backend_factory = backend_factory or self._default_backend
        self.on_subcall_start = on_subcall_start
        self.on_subcall_complete = on_subcall_complete
        self.verbose = verbose

    def run(
        self,
        context: Given,
        task_prompt: str,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        timeout: float | None = None,
    ) -> RLMRunResult:
        """Answer `task_prompt` about `context`, of any type that `LocalREPLEnv.reset` accepts.

        After `timeout_s` (or `timeout`) seconds, the answer is the text "Error: child timeout after
        ...".

        Raises:
            ModelError: the chat function raised.
            EpisodeAborted: the session was lost.
            TypeError, ValueError, OSError: naming the argument; no request was made.
        """
        return RUNS.wait_for(
            self._run(context, task_prompt, model, one_timeout(timeout_s, timeout))
        )

    async def _run(
        self, context: Given, task_prompt: str, model: str | None, timeout_s: float | None
    ) -> RLMRunResult:
        from repl_env.local import AsyncLocalREPLEnv

        of_kind(task_prompt, str, "task_prompt")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        backend = self._backend()
        width = self._limits.max_batch_workers
        async with AsyncLocalREPLEnv.with_provider(
            self._provider(backend), max_concurrent_subcalls=width
        ) as environment:
            await environment.reset(
                context=context,
                task_prompt=task_prompt,
                max_iterations=self.max_iterations * self.env_max_iterations_multiplier,
                llm_model=model,
            )
            result = await self._run_in(environment, replace_surrogates(task_prompt), model).play(
                timeout_s
            )
        answer = result.final_answer
        if result.stop_reason == "timeout" and answer is None:
            answer = f"Error: child timeout after {timeout_s:.3f}s"
        traces = list(getattr(backend, "child_traces", []))
        return replace(
            result,
            final_answer=answer,
            # The turn that only asks for an answer is not among them.
            iterations=min(result.iterations, self.max_iterations),
            depth=self.depth,
            child_traces=traces,
        )

    def _backend(self) -> RecursiveBackend:
        return self.backend_factory(
            self.llm_chat_fn,
            system_prompt=self.system_prompt,
            max_iterations=self.max_iterations,
            max_depth=self.max_depth,
            depth=self.depth,
            env_max_iterations_multiplier=self.env_max_iterations_multiplier,
        )

    def _provider(self, backend: RecursiveBackend) -> GivenProvider:
        """Return the provider of a run's sub-calls: the functions of its backend."""
        missing = [
            name for name in _SUBCALL_FUNCTIONS if not callable(getattr(backend, name, None))
        ]
        if missing:
            kind, names = type(backend).__name__, ", ".join(missing)
            raise TypeError(f"backend_factory must return a backend; {kind} has no {names}")
        may_be_shorter = self._limits.max_children_per_batch is not None
        return GivenProvider(
            *(getattr(backend, name) for name in _SUBCALL_FUNCTIONS), may_be_shorter=may_be_shorter
        )

    def _run_in(self, environment: AsyncLocalREPLEnv, question: str, model: str | None) -> RunLoop:
        """Return the run of the environment's current episode."""
        notes = tuple(
            ContextNote(part.name, part.type, part.length) for part in environment.contexts
        )
        children = self.depth + 1 < self.max_depth
        return RunLoop(
            question=question,
            initial_messages=system_messages(
                question, notes, prompt=self.system_prompt, children=children
            ),
            model=self._model,
            environment=environment,
            run_config=RunConfig(max_iterations=self.max_iterations),
            model_name=model,
            contexts=notes,
            on_event=self._print if self.verbose else None,
        )

    def _default_backend(self, llm_chat_fn: ChatFn, **arguments: Any) -> RecursiveBackend:
        return LocalChildRLMBackend(
            llm_chat_fn,
            runner_factory=LocalRLMRunner,
            system_prompt=arguments["system_prompt"],
            max_iterations=arguments["max_iterations"],
            env_max_iterations_multiplier=arguments["env_max_iterations_multiplier"],
            depth=arguments["depth"],
            limits=self._limits,
            on_subcall_start=self.on_subcall_start,
            on_subcall_complete=self.on_subcall_complete,
        )

    def _print(self, event: AnyEvent) -> None:
        if isinstance(event, ModelReplied):
            length = len(event.completion.text)
            print(f"[depth={self.depth}] iteration={event.turn} reply={length} characters")  # noqa: T201
