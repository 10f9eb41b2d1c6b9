"""`LocalBase`: constructor, settings and views of the two local environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Never, Self

from repl_env.common.displayed import DisplayedByRepr
from repl_env.env.assignable_attribute import of_inner
from repl_env.env.environment import REPLEnvironment
from repl_env.env.options import ConstructorOptions
from repl_env.episode.call_options import ResetOptions, options_in
from repl_env.episode.contexts import ContextPart
from repl_env.episode.previews import Preview
from repl_env.models import (
    DEFAULT_CONTEXT_PREVIEW_LENGTH,
    DEFAULT_MAX_CONCURRENT_SUBCALLS,
    DEFAULT_MAX_OUTPUT_LENGTH,
)
from repl_env.rewards.rubric import Rubric
from repl_env.rlm.subcalls.subcall_settings import Provider, UserFunction
from repl_sandbox import AsyncSandbox, Limits, Policy, Sandbox
from repl_sandbox.types import Answers

if TYPE_CHECKING:
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_env.rlm.budget.ledger import LedgerAccount
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls


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
    **{each.name: f"limits=Limits({each.name}=...)" for each in fields(Limits)},
    "timeout_s": "limits=Limits(timeout=...)",
    **{each.name: f'policy=Policy("lint", {each.name}=...)' for each in fields(Policy)},
    "language": "policy=Policy(...)",
}
_OF_RESET = frozenset(each.name for each in fields(ResetOptions))


def _hint(name: str) -> str:
    """Return a hint if an unknown argument is a field of `Limits` or `Policy`, or is of a reset."""
    if name in _OF_RESET:
        return f"; pass reset({name}=...)"
    place = _HINTS.get(name)
    if place is None:
        return ""
    kind = place.partition("=")[2].partition("(")[0]
    return f"; it is {place} (from repl_env import {kind})"
