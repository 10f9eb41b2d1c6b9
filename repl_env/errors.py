"""What can go wrong in an episode, sorted by who must act.

    REPLError               also a RuntimeError, which is what OpenEnv raises
    ├── NotReset            the caller: no episode has begun
    ├── EpisodeDone         the caller: the episode is over; `.result` is its last step
    ├── EpisodeAborted      nobody here: what the episode ran on is gone; `.kind` says what
    ├── ModelError          whoever runs the model: it gave no answer; `.retryable` says if it may
    ├── BudgetExceeded      whoever set the budget; raised in cells too
    └── ServerError         of `REPLEnv` alone; `.code` is one of docs/endpoint.md, or the client's
        ├── InvalidRequest        the caller: an argument is wrong; also a ValueError
        ├── TooLarge              the caller: over a limit of the server or the client, also that
        ├── NotSupported          the caller: the server has no such request
        ├── AuthenticationFailed  the caller: no key, a wrong one, or one that may not do this
        ├── QuotaExceeded         the caller: asked too often, or has used up what was allowed
        ├── CapacityReached       whoever runs the server: no session is free
        ├── ServerUnavailable     nobody here: it is not to be reached; also a ConnectionError
        ├── ReplyTimeout          nobody here: no reply in time; also a TimeoutError
        ├── BadReply              whoever wrote the server: a reply that is none
        └── SessionLost           nobody here: the session is gone; a reset begins another

Code that raises inside an episode is an observation, never one of these. Errors of the engine that
are not about a running episode (`repl_sandbox.errors`) pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from repl_env.common.json_values import visible

if TYPE_CHECKING:
    from repl_env.llm.base import ModelUsage
    from repl_env.models import StepResult

__all__ = [
    "AuthenticationFailed",
    "BadReply",
    "BudgetExceeded",
    "CapacityReached",
    "EpisodeAborted",
    "EpisodeDone",
    "InvalidRequest",
    "ModelError",
    "NotReset",
    "NotSupported",
    "QuotaExceeded",
    "REPLError",
    "ReplyTimeout",
    "ServerError",
    "ServerUnavailable",
    "SessionLost",
    "TooLarge",
]


# Kinds of failure (`error_kind`) that are not the policy's: what they touch is no measure of it.
OURS = frozenset({"sandbox", "llm", "cancelled"})


def _copied(kind: type[REPLError], text: tuple[Any, ...]) -> REPLError:
    error = kind.__new__(kind)
    error.args = text
    return error


class REPLError(RuntimeError):
    """The environment could not do what was asked of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # As it is: Python would call the class with the text alone, which most do not take, and a
        # pool of processes waits for ever for an error that it cannot read.
        return _copied, (type(self), self.args), vars(self)


class NotReset(REPLError):
    """There is no episode yet, or the environment is closed."""

    def __init__(self, message: str = "Environment not initialized. Call reset() first.") -> None:
        super().__init__(message)


class EpisodeDone(REPLError):
    """The episode is over and was scored; `result` is its last step, as it was returned then."""

    def __init__(self, result: StepResult[Any]) -> None:
        self.result = result
        super().__init__(f"The episode {_how_it_ended(result)}.")


def _how_it_ended(result: StepResult[Any]) -> str:
    """Why there are no more steps, and what to do, from the last result of an episode."""
    observation = result.observation
    # An environment of another project may have observations without these.
    steps, most = (getattr(observation, name, None) for name in ("iteration", "max_iterations"))
    after = "" if steps is None else f" after {steps} {'step' if steps == 1 else 'steps'}"
    match (result.metadata or {}).get("stop_reason"):
        case "max_iterations" if steps is not None and most is not None and steps >= most:
            return f"ended{after} (max_iterations={most}); pass reset(max_iterations=...) for more"
        case "budget":
            return f"ended{after}: its budget is used up (budget=); call reset() to begin another"
        case "answer":
            return f"ended{after} with an answer, and was scored; call reset() to begin another"
        case _:
            return f"is done{after}, and was scored; call reset() to begin another"


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


class ServerError(REPLError):
    """A server refused a request, or did not answer it as it should.

    `code` is one of `repl_env.client.protocol.refusal_codes.CODES`, or of the subclasses' own. `id`
    finds the refusal in
    the server's log. `retry_after`: seconds until it is worth asking again, if the server said so.
    `details`: what else the server said, by name. No key or header is in any of them.
    """

    CODE: ClassVar[str] = "SESSION_ERROR"
    # What there is to do, where the message does not say it.
    REMEDY: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        id: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        # Who reads a traceback is not to have the terminal steered by a server.
        self.message = visible(message)
        self.code = visible(self.CODE if code is None else code)
        self.id = None if id is None else visible(id)
        self.retry_after = retry_after
        self.details = dict(details or {})
        told = f"{self.code}: {self.message}{self.REMEDY}"
        super().__init__(told + (f" (id {self.id})" if self.id else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are an OSError besides, which only a call of the class makes.
        made = partial(
            type(self),
            code=self.code,
            id=self.id,
            retry_after=self.retry_after,
            details=self.details,
        )
        return made, (self.message,), vars(self)


class InvalidRequest(ServerError, ValueError):
    """The server refused an argument; `details["errors"]` says which. Nothing was done."""

    CODE = "VALIDATION_ERROR"


class TooLarge(ServerError, ValueError):
    """A message, a context or a reply is over a limit, which the message names."""

    CODE = "TOO_LARGE"


class NotSupported(ServerError, NotImplementedError):
    """The server has no such request: it speaks an older protocol, or OpenEnv's frames alone."""

    CODE = "UNKNOWN_TYPE"


class AuthenticationFailed(ServerError):
    """No API key, a wrong one, or one that may not do this."""

    CODE = "UNAUTHENTICATED"


class QuotaExceeded(ServerError):
    """More was asked for than this key, or this address, may have."""

    CODE = "QUOTA_EXCEEDED"


class CapacityReached(ServerError):
    """No session came free while the server let this client wait in line."""

    CODE = "CAPACITY_REACHED"


class ServerUnavailable(ServerError, ConnectionError):
    """The server could not be reached, or is about to stop."""

    CODE = "UNREACHABLE"


class ReplyTimeout(ServerError, TimeoutError):
    """No reply came in time. A step was told to end; the session is the same as before."""

    CODE = "REPLY_TIMEOUT"


class BadReply(ServerError):
    """What the server sent is no reply to what it was asked."""

    CODE = "BAD_REPLY"


class SessionLost(ServerError):
    """The session is gone, with its variables: a reset begins another one.

    Its connection was away for longer than the server's grace time, the server was started anew, it
    was idle for too long, or somebody else has taken it.
    """

    CODE = "UNKNOWN_SESSION"
    REMEDY = "; reset() begins another session"
