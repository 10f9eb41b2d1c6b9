"""Errors of an episode, sorted by the party that must act.

    REPLError               also a RuntimeError, as in OpenEnv
    ├── NotReset            caller: no episode has begun
    ├── EpisodeDone         caller: the episode is over; `.result` is its last step
    ├── EpisodeAborted      infrastructure: the session is gone; `.kind` names the cause
    ├── ModelError          operator of the model: no answer; `.retryable` if it may come later
    ├── BudgetExceeded      owner of the budget; raised in cells too
    └── ServerError         of `REPLEnv` alone; `.code` is of docs/endpoint.md, or the client's
        ├── InvalidRequest        caller: an argument is wrong; also a ValueError
        ├── TooLarge              caller: over a limit of server or client; also a ValueError
        ├── NotSupported          caller: the server has no such request
        ├── AuthenticationFailed  caller: no key, a wrong one, or one without this permission
        ├── QuotaExceeded         caller: too many requests, or a quota is used up
        ├── CapacityReached       operator of the server: no session is free
        ├── ServerUnavailable     infrastructure: cannot be reached; also a ConnectionError
        ├── ReplyTimeout          infrastructure: no reply in time; also a TimeoutError
        ├── BadReply              author of the server: an invalid reply
        └── SessionLost           infrastructure: the session is gone; a reset begins another

Code that raises inside an episode produces an observation, never one of these errors. Errors of the
engine that do not concern a running episode (`repl_sandbox.errors`) pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from repl_env.common.display import set_module
from repl_env.common.values import visible

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


# Kinds of failure (`error_kind`) that are not the policy's: an affected episode says nothing about
# it.
INFRASTRUCTURE_KINDS = frozenset({"sandbox", "llm", "cancelled"})


def _copied(kind: type[REPLError], text: tuple[Any, ...]) -> REPLError:
    error = kind.__new__(kind)
    error.args = text
    return error


@set_module("repl_env")
class REPLError(RuntimeError):
    """The environment could not perform the request."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Keep all fields: Python would call the class with the text alone, which most classes
        # reject, and a process pool waits forever for an error that it cannot unpickle.
        return _copied, (type(self), self.args), vars(self)


CLOSED = "The environment is closed. Call reset() to begin an episode in a new session."


@set_module("repl_env")
class NotReset(REPLError):
    """No episode has begun, or the environment is closed."""

    def __init__(self, message: str = "Environment not initialized. Call reset() first.") -> None:
        super().__init__(message)


@set_module("repl_env")
class EpisodeDone(REPLError):
    """The episode is over and was scored; `result` is its last step, as returned then."""

    def __init__(self, result: StepResult[Any]) -> None:
        self.result = result
        super().__init__(f"The episode {_how_it_ended(result)}.")


def _how_it_ended(result: StepResult[Any]) -> str:
    """Return the reason of the end and advice, from the last result of an episode."""
    observation = result.observation
    # Observations of other environments may lack these fields.
    steps = getattr(observation, "iteration", None)
    limit = getattr(observation, "max_iterations", None)
    after = "" if steps is None else f" after {steps} {'step' if steps == 1 else 'steps'}"
    match (result.metadata or {}).get("stop_reason"):
        case "max_iterations" if steps is not None and limit is not None and steps >= limit:
            return f"ended{after} (max_iterations={limit}); pass reset(max_iterations=...) for more"
        case "budget":
            return f"ended{after}: its budget is used up (budget=); call reset() to begin another"
        case "answer":
            return f"ended{after} with an answer, and was scored; call reset() to begin another"
        case _:
            return f"is done{after}, and was scored; call reset() to begin another"


@set_module("repl_env")
class EpisodeAborted(REPLError):
    """The episode cannot continue, through no fault of the policy; it has no score.

    `kind` is an infrastructure kind of `error_kind`: "sandbox", "llm", "cancelled".
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@set_module("repl_env")
class ModelError(REPLError):
    """A model gave no answer.

    `kind` is a word for the reason: "timeout", "rate_limit", "connection", "server", "refused",
    "authentication", "not_found", "request", "type", "memory", "closed", or the name of an
    exception of the user's function. `retryable`: the same request may succeed later.
    `retry_after`: seconds, if the endpoint gave them. `usage`: the cost of the call in spite of the
    failure, if the endpoint reported it.
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


@set_module("repl_env")
class BudgetExceeded(REPLError):
    """A request exceeds the remaining budget; nothing was spent.

    `field` is the exhausted field of `repl_env.rlm.Budget`. `unpriced` is the name of a model whose
    call was refused because its price is unknown; None otherwise.
    """

    def __init__(self, field: str, message: str, *, unpriced: str | None = None) -> None:
        self.field = field
        self.unpriced = unpriced
        super().__init__(message)


@set_module("repl_env")
class ServerError(REPLError):
    """A server refused a request, or answered it incorrectly.

    `code` is one of `repl_env.client.protocol.CODES`, or of the subclasses' own. `id` finds the
    refusal in the server's log. `retry_after`: seconds until a new attempt makes sense, if the
    server
    said so. `details`: further fields of the server, by name. None of them holds a key or header.
    """

    CODE: ClassVar[str] = "SESSION_ERROR"
    # Advice, if the message has none.
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
        # A server must not control the terminal of a person who reads a traceback.
        self.message = visible(message)
        self.code = visible(self.CODE if code is None else code)
        self.id = None if id is None else visible(id)
        self.retry_after = retry_after
        self.details = dict(details or {})
        message = f"{self.code}: {self.message}{self.REMEDY}"
        super().__init__(message + (f" (id {self.id})" if self.id else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # Some classes are also an OSError, which only a call of the class initialises.
        made = partial(
            type(self),
            code=self.code,
            id=self.id,
            retry_after=self.retry_after,
            details=self.details,
        )
        return made, (self.message,), vars(self)


@set_module("repl_env")
class InvalidRequest(ServerError, ValueError):
    """The server refused an argument; `details["errors"]` names it. Nothing was done."""

    CODE = "VALIDATION_ERROR"


@set_module("repl_env")
class TooLarge(ServerError, ValueError):
    """A message, a context or a reply is over a limit, which the message names."""

    CODE = "TOO_LARGE"


@set_module("repl_env")
class NotSupported(ServerError, NotImplementedError):
    """The server has no such request: it speaks an older protocol, or only OpenEnv's frames."""

    CODE = "UNKNOWN_TYPE"


@set_module("repl_env")
class AuthenticationFailed(ServerError):
    """No API key, a wrong one, or one without this permission."""

    CODE = "UNAUTHENTICATED"


@set_module("repl_env")
class QuotaExceeded(ServerError):
    """The request exceeds the quota of this key, or of this address."""

    CODE = "QUOTA_EXCEEDED"


@set_module("repl_env")
class CapacityReached(ServerError):
    """No session became free while the server let this client wait in its queue."""

    CODE = "CAPACITY_REACHED"


@set_module("repl_env")
class ServerUnavailable(ServerError, ConnectionError):
    """The server could not be reached, or is about to stop."""

    CODE = "UNREACHABLE"


@set_module("repl_env")
class ReplyTimeout(ServerError, TimeoutError):
    """No reply came in time. The step was told to end; the session is the same as before."""

    CODE = "REPLY_TIMEOUT"


@set_module("repl_env")
class BadReply(ServerError):
    """The server's message is not a valid reply."""

    CODE = "BAD_REPLY"


@set_module("repl_env")
class SessionLost(ServerError):
    """The session is gone, with its variables: a reset begins another one.

    Its connection was away for longer than the server's grace time, the server restarted, the
    session was idle for too long, or another client has taken it over.
    """

    CODE = "UNKNOWN_SESSION"
    REMEDY = "; reset() begins another session"
