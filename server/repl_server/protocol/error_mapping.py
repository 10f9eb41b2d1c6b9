"""Map exceptions to the errors that clients see.

A client never sees a traceback or a path of the host. The log has both, under the id of the error.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset, REPLError
from repl_env.models import StepResult
from repl_sandbox.errors import SandboxError, SessionClosed

from .request_error import RequestError
from .validation import validation_error, validation_error_of

logger = logging.getLogger("repl_server")

# Characters of an exception's text that a client sees.
_MOST = 500
_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)*[\w.@+-]+")


def request_error_of(error: Exception) -> RequestError:
    """The error that a client sees for a request that ended with `error`."""
    match error:
        case RequestError():
            return error
        case ValidationError() | RequestValidationError():
            return validation_error_of(error.errors())
        case NotReset():
            return RequestError("NOT_RESET", str(error))
        case EpisodeDone():
            return RequestError("EPISODE_DONE", str(error), result=_result_fields(error.result))
        case EpisodeAborted():
            message = f"{error.kind}: the session of the episode is lost"
            return _logged("EPISODE_ABORTED", message, error)
        case REPLError():
            return _logged("EXECUTION_ERROR", safe_message(error), error)
        case SandboxError():
            return _logged("EPISODE_ABORTED", "sandbox: no session could be started", error)
    return _logged("EXECUTION_ERROR", f"{type(error).__name__}: {safe_message(error)}", error)


@contextmanager
def file_errors() -> Iterator[None]:
    """Turn errors of operations on the files of a session into errors for its client.

    Raises:
        RequestError: in place of the block's error.
    """
    try:
        yield
    except OSError as error:
        raise file_error(error) from None
    except (TypeError, ValueError) as error:
        place, _, rest = str(error).partition(" ")
        raise validation_error(place if place.isidentifier() else "path", rest) from None
    except SessionClosed:
        raise RequestError("UNKNOWN_SESSION", "the session has ended") from None
    except REPLError as error:
        raise request_error_of(error) from None
    except SandboxError as error:
        raise _logged("EXECUTION_ERROR", safe_message(error), error) from None


def file_error(error: OSError) -> RequestError:
    """The error for a file of a session; an error of the server's own is in the log alone."""
    if error.errno is None or not isinstance(error.filename, str):
        return _logged("SESSION_ERROR", "the server failed to read or write the file", error)
    code = "NO_FILE" if error.errno == errno.ENOENT else "FILE_ERROR"
    name = errno.errorcode.get(error.errno, "EIO")
    return RequestError(code, f"{error.strerror or name}: {error.filename!r}", errno=name)


def server_fault(code: str, message: str, error: BaseException) -> RequestError:
    """A logged error that the server caused, not the client."""
    return _logged(code, message, error)


def safe_message(error: BaseException) -> str:
    """The text of an exception as clients see it: one line, without paths of the host."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().partition("\n")[0][:_MOST]
    return _PATH.sub("(a path on the server)", line)


def _result_fields(result: StepResult[Any]) -> dict[str, Any]:
    inner = result.observation.model_dump(exclude={"reward", "done"})
    return {"observation": inner, "reward": result.reward, "done": result.done}


def _logged(code: str, message: str, error: BaseException) -> RequestError:
    refusal = RequestError(code, message)
    logger.warning("%s %s", code, refusal.id, exc_info=error)
    return refusal
