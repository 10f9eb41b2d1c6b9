"""The options of environments, of their constructors, and checks of names and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from repl_env.common.argument_checks import at_least, check_callable, of_kind, one_of
from repl_env.common.json_values import json_text
from repl_env.episode import contexts
from repl_env.episode.call_options import options_in
from repl_env.episode.contexts import Given
from repl_env.episode.previews import MODES, Preview
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_OUTPUT_LENGTH,
)
from repl_env.rlm.subcalls.subcall_settings import BUDGET, NAMES, UserFunction
from repl_sandbox.protocol.values.variable_names import check_free
from repl_sandbox.session.host_functions.host_function import check_function_name
from repl_sandbox.types import Answers

if TYPE_CHECKING:
    from repl_env.interfaces import Transform
    from repl_env.models import REPLObservation
    from repl_env.rewards.rubric import Rubric
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox

_RESERVED = frozenset({*NAMES, BUDGET})


# The minimum of each count, and the counts that may be None.
_LEAST = {
    "max_iterations": 1,
    "max_output_length": 1,
    "context_preview_length": 0,
    "rlm_max_depth": 1,
    "rlm_max_iterations": 1,
    "max_concurrent_subcalls": 1,
}
_OPTIONAL = frozenset({"rlm_max_iterations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """The options of an environment, for all its episodes. See `REPLEnvironment`."""

    context: Given | None = None
    task_prompt: str | None = None
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH
    context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH
    rlm_max_depth: int = 1
    rlm_max_iterations: int | None = None
    max_concurrent_subcalls: int = DEFAULT_MAX_CONCURRENT_SUBCALLS
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    answers: Answers = "compatible"
    preview: Preview = "head"

    def __post_init__(self) -> None:
        for name, minimum in _LEAST.items():
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, at_least(value, minimum, name))
        one_of(self.answers, ("compatible", "strict"), "answers")
        one_of(self.preview, tuple(MODES), "preview")
        checked_tools(self.tools)
        if self.context is not None:
            contexts.check_kind(contexts.NAME, self.context)
        if self.task_prompt is not None:
            of_kind(self.task_prompt, str, "task_prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructorOptions:
    """The options of the constructors of `REPLEnvironment` and of the local environments."""

    context: Given | None = None
    task_prompt: str | None = None
    max_iterations: int = DEFAULT_MAX_ITERATIONS
    max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH
    context_preview_length: int = DEFAULT_CONTEXT_PREVIEW_LENGTH
    rubric: Rubric | None = None
    llm_query_fn: UserFunction | None = None
    llm_batch_fn: UserFunction | None = None
    subcall_fn: UserFunction | None = None
    subcall_batch_fn: UserFunction | None = None
    rlm_max_depth: int = 1
    rlm_max_iterations: int | None = None
    sandbox: Sandbox | AsyncSandbox | None = None
    isolation: str = "auto"
    require: str | None = None
    image: str | None = None
    runtime: str | None = None
    limits: Limits | None = None
    policy: Policy | None = None
    preload: Sequence[str] = ()
    tools: Mapping[str, UserFunction] | None = None
    budget: Budget | None = None
    prices: Mapping[str, Price] | None = None
    answers: Answers = "compatible"
    preview: Preview = "head"
    max_concurrent_subcalls: int = DEFAULT_MAX_CONCURRENT_SUBCALLS
    transform: Transform[REPLObservation] | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the options among `arguments`."""
        return cls(**options_in(cls, arguments))


def checked_tools(tools: Mapping[str, Callable[..., Any]] | None) -> dict[str, Callable[..., Any]]:
    """Return a copy of `tools`.

    TypeError or ValueError naming a tool that a session cannot have.
    """
    if not isinstance(tools, Mapping | None):
        raise TypeError(f"tools must be a dict of functions, not {type(tools).__name__}")
    for name, tool in (tools or {}).items():
        check_name(check_function_name(name, "tools"), "tools")
        check_callable(tool, f"tools: {name}")
    return dict(tools or {})


def check_name(name: object, argument: str, used_names: Mapping[str, object] | None = None) -> None:
    """Raise TypeError or ValueError unless `name` is a valid variable name that is not reserved."""
    if (checked := check_free(name, argument)) in _RESERVED or checked in (used_names or {}):
        raise ValueError(f"{argument}: the name {name!r} is taken; the session has it already")


def check_variables(variables: object, used_names: Mapping[str, object]) -> None:
    """Raise TypeError or ValueError naming a variable that a follow-up cannot set."""
    if not isinstance(variables, Mapping):
        raise TypeError(f"variables must be a dict, not {type(variables).__name__}")
    for name, value in variables.items():
        check_name(name, "variables", used_names)
        if not isinstance(value, (str, bytes, bytearray, memoryview)):
            json_text(f"variables: {name}", value)
