"""What can go wrong in an episode, sorted by who must act.

    REPLError               also a RuntimeError, which is what OpenEnv raises
    ├── NotReset            the caller: no episode has begun
    ├── EpisodeDone         the caller: the episode is over; `.result` is its last step
    ├── EpisodeAborted      nobody here: what the episode ran on is gone; `.kind` says what
    ├── ModelError          whoever runs the model: it gave no answer; `.retryable` says if it may
    └── BudgetExceeded      whoever set the budget; raised in cells too

Code that raises inside an episode is an observation, never one of these. Errors of the engine that
are not about a running episode (`repl_sandbox.errors`) pass through unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_env.models import StepResult
    from repl_env.rlm.model import ModelUsage


# Kinds of failure (`error_kind`) that are not the policy's: what they touch is no measure of it.
OURS = frozenset({"sandbox", "llm", "cancelled"})


class REPLError(RuntimeError):
    """The environment could not do what was asked of it."""


class NotReset(REPLError):
    """There is no episode yet, or the environment is closed."""

    def __init__(self, message: str = "Environment not initialized. Call reset() first.") -> None:
        super().__init__(message)


class EpisodeDone(REPLError):
    """The episode is over and was scored; `result` is its last step, as it was returned then."""

    def __init__(self, result: StepResult[Any]) -> None:
        self.result = result
        super().__init__("The episode is done and was scored. Call reset() to begin another.")


class EpisodeAborted(REPLError):
    """The episode cannot go on, by no fault of the policy; it has no score.

    `kind` is one of the kinds of `error_kind` that are ours: "sandbox", "llm", "cancelled".
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class ModelError(REPLError):
    """A model gave no answer.

    `kind` is a word for the reason: "timeout", "rate_limit", "connection", "server", "refused",
    "authentication", "request", "type", "memory", "closed", or the name of an exception of the
    user's function.
    `retryable`: the same question may be answered later. `retry_after`: seconds, if the endpoint
    said when. `usage`: what the call cost all the same, if the endpoint said so.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        usage: ModelUsage | None = None,
    ) -> None:
        self.kind = kind
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.usage = usage
        super().__init__(f"{kind}: {message}")


class BudgetExceeded(REPLError):
    """What was asked for does not fit into what is left of the budget; nothing was spent.

    `field` is the one of `repl_env.rlm.Budget` that is used up.
    """

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)
