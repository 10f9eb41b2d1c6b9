"""The controller of sub-calls, at the module path of OpenEnv's `repl_env.recursive_controller`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import at_least, check_callable, of_kind
from repl_env.prompts import RLM_SYSTEM_PROMPT
from repl_env.recursive_backends import BackendLimits, ChatFn, DirectLMBackend, LocalChildRLMBackend

# The sub-call functions of one environment, as in OpenEnv's `repl_env.recursive_controller`.

__all__ = [
    "RecursiveController",
    "create_server_recursive_controller",
]

# Steps that an environment allows for each turn of a runner in it.
STEPS_PER_TURN = 5


@set_module("repl_env.recursive_controller")
@dataclass
class RecursiveController:
    """Functions for `REPLEnvironment`. None: recursive questions are plain ones."""

    llm_query_fn: Callable[[str, str | None], str]
    llm_batch_fn: Callable[[list[str], str | None], list[str]]
    rlm_query_fn: Callable[[str, str | None], str] | None
    rlm_batch_fn: Callable[[list[str], str | None], list[str]] | None
    backend: Any

    def close(self) -> None:
        """Do nothing: no resources are held."""


@set_module("repl_env.recursive_controller")
def create_server_recursive_controller(
    chat_fn: ChatFn,
    *,
    max_depth: int,
    max_iterations: int,
    system_prompt: str = RLM_SYSTEM_PROMPT,
    max_batch_workers: int = 8,
    max_children_total: int | None = None,
    max_children_per_batch: int | None = None,
    result_truncation_limit: int | None = None,
    per_child_timeout_s: float | None = None,
    env_max_iterations_multiplier: int = STEPS_PER_TURN,
) -> RecursiveController:
    """Return the functions that `chat_fn` answers, with child runs if `max_depth` is over 1.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    check_callable(chat_fn, "chat_fn")
    of_kind(system_prompt, str, "system_prompt")
    at_least(max_iterations, 1, "max_iterations")
    at_least(env_max_iterations_multiplier, 1, "env_max_iterations_multiplier")
    limits = BackendLimits(
        max_depth=max_depth,
        max_batch_workers=max_batch_workers,
        max_children_total=max_children_total,
        max_children_per_batch=max_children_per_batch,
        result_truncation_limit=result_truncation_limit,
        per_child_timeout_s=per_child_timeout_s,
    )
    if max_depth <= 1:
        plain = DirectLMBackend(chat_fn, limits=limits)
        return RecursiveController(plain.query, plain.query_batched, None, None, plain)
    from repl_env.runner import LocalRLMRunner

    deep = LocalChildRLMBackend(
        chat_fn,
        runner_factory=LocalRLMRunner,
        system_prompt=system_prompt,
        max_iterations=max_iterations,
        env_max_iterations_multiplier=env_max_iterations_multiplier,
        limits=limits,
    )
    return RecursiveController(
        deep.query, deep.query_batched, deep.recursive_query, deep.recursive_query_batched, deep
    )
