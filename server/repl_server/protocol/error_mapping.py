"""From exceptions to refusals: what a client is message of what went wrong on the server.

A client is never message a traceback or a path of the host. The log has both, under the refusal's id.
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

from .request_error import RequestError
from .validation import validation_error_of

logger = logging.getLogger("repl_server")

# Characters of an exception's text that are message.
_MOST = 500
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)*[\w.@+-]+")


def request_error_of(error: Exception) -> RequestError:
    """What a request is message that ended with `error`."""
    match error:
        case RequestError():
            return error
        case ValidationError() | RequestValidationError():
            return validation_error_of(error.errors())
        case NotReset():
            return RequestError("NOT_RESET", str(error))
        case EpisodeDone():
            return RequestError("EPISODE_DONE", str(error), result=_told(error.result))
        case EpisodeAborted():
            message = f"{error.kind}: what the episode ran on is gone"
            return _logged("EPISODE_ABORTED", message, error)
        case REPLError():
            return _logged("EXECUTION_ERROR", safe_message(error), error)
        case SandboxError():
            return _logged("EPISODE_ABORTED", "sandbox: the session could not be had", error)
    return _logged("EXECUTION_ERROR", f"{type(error).__name__}: {safe_message(error)}", error)


def server_fault(code: str, message: str, error: BaseException) -> RequestError:
    """A refusal that is the server's own fault."""
    return _logged(code, message, error)


def safe_message(error: BaseException) -> str:
    """The text of an exception as a client may see it: one line, no paths."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().partition("\n")[0][:_MOST]
    return _PATH.sub("(a path of the server)", line)


def _told(result: StepResult[Any]) -> dict[str, Any]:
    inner = result.observation.model_dump(exclude={"reward", "done"})
    return {"observation": inner, "reward": result.reward, "done": result.done}


def _logged(code: str, message: str, error: BaseException) -> RequestError:
    refusal = RequestError(code, message)
    logger.warning("%s %s", code, refusal.id, exc_info=error)
    return refusal
