"""What can go wrong in an episode, sorted by who must act.

    REPLError               also a RuntimeError, which is what OpenEnv raises
    ├── NotReset            the caller: no episode has begun
    ├── EpisodeDone         the caller: the episode is over; `.result` is its last step
    └── EpisodeAborted      nobody here: what the episode ran on is gone; `.kind` says what

Code that raises inside an episode is an observation, never one of these. Errors of the engine that
are not about a running episode (`repl_sandbox.errors`) pass through unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_env.models import StepResult


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
