"""Backends of sub-calls, at the module path of OpenEnv's `repl_env.recursive_backends`."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from repl_env.common.display import set_module
from repl_env.common.threads import RUNS, accepts, check_takes
from repl_env.common.values import at_least, check_callable
from repl_env.interfaces import Message
from repl_env.llm.base import ModelFunction, as_completion
from repl_env.parsing.blocks import without_thoughts
from repl_env.rlm.config import ChildTrace
from repl_sandbox.types import check_seconds

# Answers to sub-calls with the interface of OpenEnv's `repl_env.recursive_backends`.
#
# For existing code: OpenEnv's names, arguments and texts. `repl_env.rlm` adds budgets, typed
# answers and cancellation, and suits new code better.

__all__ = [
    "BackendLimits",
    "ChatFn",
    "ChildTrace",
    "DirectLMBackend",
    "LocalChildRLMBackend",
    "RecursiveBackend",
]

ChatFn: TypeAlias = ModelFunction
T = TypeVar("T")
OnStart: TypeAlias = Callable[[int, str, str], None]
OnComplete: TypeAlias = Callable[[int, str, float, "str | None"], None]

# The minimum of each limit; those of children and results may also be None.
_LEAST = {
    "max_depth": 1,
    "max_batch_workers": 1,
    "max_children_total": 0,
    "max_children_per_batch": 0,
    "result_truncation_limit": 0,
}

# Characters of prompts and results in traces.
_PREVIEW = 80


@set_module("repl_env.recursive_backends")
class RecursiveBackend(Protocol):
    """Answers the sub-calls of one run."""

    max_depth: int
    depth: int
    child_traces: list[ChildTrace]

    def query(self, prompt: str, model: str | None = None) -> str:
        """Answer one plain question."""

    def query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Answer plain questions, in order."""

    def recursive_query(self, prompt: str, model: str | None = None) -> str:
        """Answer one question by a child run, if the depth allows."""

    def recursive_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Answer such questions, in order."""


@set_module("repl_env.recursive_backends")
@dataclass
class BackendLimits:
    """Limits on sub-calls.

    `max_children_per_batch` shortens a batch, and with it the list of its results.
    `result_truncation_limit` is in characters, `per_child_timeout_s` in seconds.

    Raises:
        TypeError, ValueError: naming the field.
    """

    max_depth: int = 1
    max_batch_workers: int = 8
    max_children_total: int | None = None
    max_children_per_batch: int | None = None
    result_truncation_limit: int | None = None
    per_child_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None or name in ("max_depth", "max_batch_workers"):
                at_least(value, least, name)
        if self.per_child_timeout_s is not None:
            check_seconds(self.per_child_timeout_s, "per_child_timeout_s")


@set_module("repl_env.recursive_backends")
class DirectLMBackend:
    """A chat function answers everything; recursive questions are plain ones."""

    def __init__(
        self, llm_chat_fn: ChatFn, *, depth: int = 0, limits: BackendLimits | None = None
    ) -> None:
        check_callable(llm_chat_fn, "llm_chat_fn")
        check_takes(llm_chat_fn, "messages", "llm_chat_fn")
        self.llm_chat_fn = llm_chat_fn
        self.depth = at_least(depth, 0, "depth")
        self.limits = limits or BackendLimits()
        self.max_depth = self.limits.max_depth
        self.child_traces: list[ChildTrace] = []
        self._takes_model = accepts(llm_chat_fn, [], None)

    def query(self, prompt: str, model: str | None = None) -> str:
        """Ask the chat function one question; its exceptions are passed on. Reasoning is left out.

        Raises:
            ModelError: its result is not an answer.
        """
        messages: list[Message] = [{"role": "user", "content": prompt}]
        answer = self.llm_chat_fn(messages, *((model,) if self._takes_model else ()))
        if inspect.isawaitable(answer):
            answer = RUNS.wait_for(_awaited(answer))
        return self._cut(without_thoughts(as_completion(answer).text))

    def query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Ask several questions concurrently; a failed one yields the text of its error."""
        return self._each(self.query, prompts, model)

    def recursive_query(self, prompt: str, model: str | None = None) -> str:
        """Answer like `query`."""
        return self.query(prompt, model)

    def recursive_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Answer like `query_batched`."""
        return self.query_batched(prompts, model)

    def _each(
        self, ask: Callable[[str, str | None], str], prompts: list[str], model: str | None
    ) -> list[str]:
        def one(prompt: str) -> str:
            try:
                return ask(prompt, model)
            # Boundary: an item of a batch holds its own failure, whatever the function raises.
            except Exception as error:  # noqa: BLE001
                return f"Error: {error}"

        if not prompts:
            return []
        with ThreadPoolExecutor(min(len(prompts), self.limits.max_batch_workers)) as pool:
            return list(pool.map(one, prompts))

    def _cut(self, result: str) -> str:
        return result[: self.limits.result_truncation_limit]


@set_module("repl_env.recursive_backends")
class LocalChildRLMBackend(DirectLMBackend):
    """Runners that `runner_factory` makes answer recursive questions."""

    def __init__(
        self,
        llm_chat_fn: ChatFn,
        *,
        runner_factory: Callable[..., Any],
        system_prompt: str,
        max_iterations: int,
        env_max_iterations_multiplier: int,
        depth: int = 0,
        limits: BackendLimits | None = None,
        on_subcall_start: OnStart | None = None,
        on_subcall_complete: OnComplete | None = None,
    ) -> None:
        super().__init__(llm_chat_fn, depth=depth, limits=limits)
        check_callable(runner_factory, "runner_factory")
        check_listeners(on_subcall_start, on_subcall_complete)
        self.runner_factory = runner_factory
        self.system_prompt = system_prompt
        self.max_iterations = max_iterations
        self.env_max_iterations_multiplier = env_max_iterations_multiplier
        self.on_subcall_start = on_subcall_start
        self.on_subcall_complete = on_subcall_complete
        self._lock = threading.Lock()
        self._children = 0

    def recursive_query(self, prompt: str, model: str | None = None) -> str:
        """Pass the question to a runner one level down; a plain question at the depth limit."""
        depth = self.depth + 1
        if depth >= self.max_depth:
            return self.query(prompt, model)
        if not self._may_begin():
            return "Error: max_children_total exceeded"
        name = str(model or "default")
        self._tell(self.on_subcall_start, depth, name, prompt[:_PREVIEW])
        began, text, problem = time.perf_counter(), "", None
        try:
            text, problem = self._run(prompt, model, depth)
        except Exception as error:
            problem = str(error)
            raise
        finally:
            seconds = time.perf_counter() - began
            shown = None if problem else text[:_PREVIEW]
            trace = ChildTrace(depth, seconds, prompt[:_PREVIEW], shown or None, problem)
            self.child_traces.append(trace)
            self._tell(self.on_subcall_complete, depth, name, seconds, problem)
        return text

    def recursive_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Answer several concurrently.

        At most `max_children_per_batch`, with fewer results then.
        """
        return self._each(
            self.recursive_query, prompts[: self.limits.max_children_per_batch], model
        )

    def _may_begin(self) -> bool:
        max_children = self.limits.max_children_total
        with self._lock:
            if max_children is not None and self._children >= max_children:
                return False
            self._children += 1
            return True

    def _run(self, prompt: str, model: str | None, depth: int) -> tuple[str, str | None]:
        """Return the result of a child, and its failure."""
        child = self.runner_factory(
            self.llm_chat_fn,
            system_prompt=self.system_prompt,
            max_iterations=self.max_iterations,
            max_depth=self.max_depth,
            depth=depth,
            env_max_iterations_multiplier=self.env_max_iterations_multiplier,
            max_batch_workers=self.limits.max_batch_workers,
            backend_factory=self._backend_of_child,
            on_subcall_start=self.on_subcall_start,
            on_subcall_complete=self.on_subcall_complete,
        )
        limit = self.limits.per_child_timeout_s
        if limit is None:
            result = child.run(prompt, prompt, model=model)
        else:
            result = child.run(prompt, prompt, model=model, timeout_s=limit)
        if getattr(result, "stop_reason", None) == "timeout":
            problem = f"child timeout after {limit or 0:.3f}s"
            return f"Error: {problem}", problem
        return self._cut(result.final_answer or ""), None

    def _backend_of_child(self, llm_chat_fn: ChatFn, **arguments: Any) -> LocalChildRLMBackend:
        return LocalChildRLMBackend(
            llm_chat_fn,
            runner_factory=self.runner_factory,
            system_prompt=arguments["system_prompt"],
            max_iterations=arguments["max_iterations"],
            env_max_iterations_multiplier=arguments["env_max_iterations_multiplier"],
            depth=arguments["depth"],
            limits=self.limits,
            on_subcall_start=self.on_subcall_start,
            on_subcall_complete=self.on_subcall_complete,
        )

    def _tell(self, listener: Callable[..., None] | None, *facts: Any) -> None:
        if listener is not None:
            with suppress(Exception):  # a failing listener must not cost an answer
                listener(*facts)


def check_listeners(start: OnStart | None, complete: OnComplete | None) -> None:
    """Raise TypeError naming the argument, for an invalid listener."""
    if start is not None:
        check_callable(start, "on_subcall_start")
    if complete is not None:
        check_callable(complete, "on_subcall_complete")


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer
