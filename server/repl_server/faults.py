"""From exceptions to refusals: what a client is told of what went wrong on the server.

A client is never told a traceback or a path of the host. The log has both, under the refusal's id.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset, REPLError
from repl_env.models import StepResult
from repl_sandbox.errors import SandboxError

from .refusal import Refusal
from .texts import validation

logger = logging.getLogger("repl_server")

# Characters of an exception's text that are told.
_MOST = 500
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)*[\w.@+-]+")


def refusal_of(error: Exception) -> Refusal:
    """What a request is told that ended with `error`."""
    match error:
        case Refusal():
            return error
        case ValidationError() | RequestValidationError():
            return validation(error.errors())
        case NotReset():
            return Refusal("NOT_RESET", str(error))
        case EpisodeDone():
            return Refusal("EPISODE_DONE", str(error), result=_told(error.result))
        case EpisodeAborted():
            told = f"{error.kind}: what the episode ran on is gone"
            return _logged("EPISODE_ABORTED", told, error)
        case REPLError():
            return _logged("EXECUTION_ERROR", shown(error), error)
        case SandboxError():
            return _logged("EPISODE_ABORTED", "sandbox: the session could not be had", error)
    return _logged("EXECUTION_ERROR", f"{type(error).__name__}: {shown(error)}", error)


def fault(code: str, message: str, error: BaseException) -> Refusal:
    """A refusal that is the server's own fault."""
    return _logged(code, message, error)


def shown(error: BaseException) -> str:
    """The text of an exception as a client may see it: one line, no paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().partition("\n")[0][:_MOST]
    return _PATH.sub("(a path of the server)", line)


def _told(result: StepResult[Any]) -> dict[str, Any]:
    inner = result.observation.model_dump(exclude={"reward", "done"})
    return {"observation": inner, "reward": result.reward, "done": result.done}


def _logged(code: str, message: str, error: BaseException) -> Refusal:
    refusal = Refusal(code, message)
    logger.warning("%s %s", code, refusal.id, exc_info=error)
    return refusal
