"""The interface between environments and providers of sub-calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from repl_env.llm.model_spec import LLM
from repl_env.models import DEFAULT_MAX_CONCURRENT_SUBCALLS

if TYPE_CHECKING:
    from repl_env.rlm.subcalls.child_runs import ChildEnvironments
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls

UserFunction: TypeAlias = Callable[..., Any]
Failed: TypeAlias = Callable[[Exception], None]

NAMES = (
    "llm_query", "llm_query_batched", "llm_batch", "rlm_query", "rlm_query_batched", "rlm_spawn",
)  # fmt: skip
BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class SubcallSettings:
    """The settings of an episode for its sub-calls.

    Attributes:
        llm: the model that answers them.
        max_depth: levels of nested runs.
        max_iterations: turns of each child run; None: as many as the environment's episodes have.
        slots: the sub-calls of the episode that may run concurrently.
    """

    llm: LLM = field(default_factory=LLM)
    max_depth: int = 1
    max_iterations: int | None = None
    slots: int = DEFAULT_MAX_CONCURRENT_SUBCALLS


class Provider(Protocol):
    """Answers the sub-calls of an environment's episodes."""

    def names(self, settings: SubcallSettings) -> frozenset[str]:
        """The functions of the session that this provider can answer."""

    def begin(
        self, settings: SubcallSettings, failed: Failed, environments: ChildEnvironments
    ) -> EpisodeSubcalls | None:
        """The sub-calls of one episode, or None if this provider answers none.

        Args:
            failed: called, from any thread, for each call that failed by no fault of the policy.
            environments: makes the environments of child runs.
        """


def session_functions(subcalls: EpisodeSubcalls | None) -> dict[str, Any]:
    """The host functions of a session: those of `subcalls`, or ones that raise without it."""
    if subcalls is None:
        return {name: _unconfigured(name) for name in NAMES}
    return dict(subcalls.functions())


@cache  # most episodes have no model and share these functions
def _unconfigured(name: str) -> UserFunction:
    message = f"{name} is not configured: the episode has no model for sub-calls"

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    refuse.__doc__ = message
    return refuse
