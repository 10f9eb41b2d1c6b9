"""`CoreFactory`: makes the core of a session on the session's links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from ..backends.sandbox_settings import SandboxSettings
from ..limits.resource_budget import ResourceBudget
from ..session.cells.cell_answers import Accept
from ..session.core import Core
from ..session.host_functions.function_executor import FunctionExecutor
from ..session.host_functions.function_registry import HostCallable, check
from ..session.host_functions.host_function import HostFunction
from ..session_limits import Limits, check_seed
from ..types import Answers
from ..zygote.client.session_links import SessionLinks

CoreFactory: TypeAlias = Callable[[SessionLinks], Core]


class SessionArguments(NamedTuple):
    """The arguments of `Sandbox.session`."""

    host: Mapping[str, HostCallable | HostFunction] | None
    limits: Limits | None
    seed: int | None
    answers: Answers | None
    on_answer: Accept | None


def core_factory(
    settings: SandboxSettings,
    budget: ResourceBudget,
    executor: FunctionExecutor,
    arguments: SessionArguments,
    *,
    shared: Collection[str],
    preloads: bool,
) -> tuple[Limits, CoreFactory]:
    """Check the arguments; return the limits of the session, and the factory of its core.

    `shared`: names of shared objects. `preloads`: whether the template has imported modules.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    functions, answers = check(arguments.host), arguments.answers
    if clash := functions.names.intersection(shared):
        raise ValueError(
            f"host: {', '.join(sorted(clash))} is the name of a shared object; rename the function"
        )
    limits = settings.check_limits(arguments.limits)
    if answers not in (None, "strict", "compatible"):
        raise ValueError(f"answers must be None, 'strict' or 'compatible', not {answers!r}")
    return limits, partial(
        Core,
        limits=limits,
        rlimits=budget.rlimits(limits),
        registry=functions,
        executor=executor,
        seed=check_seed(arguments.seed),
        answers=answers,
        on_answer=arguments.on_answer,
        preloaded=preloads,
        snapshots=budget.snapshots,
        engine_processes=budget.own_processes - 1,
    )
