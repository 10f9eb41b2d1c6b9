"""Errors for refusals: tables of codes, close codes and HTTP statuses."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from repl_env.client.protocol.client_frames import MAX_VALUES, RefusalFrame, values
from repl_env.client.protocol.refusal_codes import IDLE, TAKEN_OVER
from repl_env.client.protocol.reply_results import step_result
from repl_env.common.json_values import visible
from repl_env.errors import (
    INFRASTRUCTURE_KINDS,
    AuthenticationFailed,
    BadReply,
    CapacityReached,
    EpisodeAborted,
    EpisodeDone,
    InvalidRequest,
    NotReset,
    NotSupported,
    QuotaExceeded,
    REPLError,
    ServerError,
    ServerUnavailable,
    SessionLost,
    TooLarge,
)
from repl_env.llm.endpoints.endpoint_errors import SecretTexts


def _episode_done(refused: RefusalFrame) -> REPLError:
    result = refused.details.get("result")
    if not isinstance(result, dict):
        raise BadReply("the server says that the episode is done, and not with which result")
    return EpisodeDone(step_result(result))


def _episode_aborted(refused: RefusalFrame) -> REPLError:
    text = visible(refused.message)
    kind, _, message = text.partition(": ")
    return (
        EpisodeAborted(kind, message)
        if kind in INFRASTRUCTURE_KINDS
        else EpisodeAborted("sandbox", text)
    )


# Codes of `repl_env.client.protocol.refusal_codes` with errors that local environments have too,
AS_LOCALLY: Mapping[str, Callable[[RefusalFrame], REPLError]] = {
    "NOT_RESET": lambda refused: NotReset(),
    "EPISODE_DONE": _episode_done,
    "EPISODE_ABORTED": _episode_aborted,
}
# and the others.
ERRORS: Mapping[str, type[ServerError]] = {
    "INVALID_JSON": InvalidRequest,
    "UNKNOWN_TYPE": NotSupported,
    "UNKNOWN_PATH": NotSupported,
    "WRONG_METHOD": NotSupported,
    "VALIDATION_ERROR": InvalidRequest,
    "EXECUTION_ERROR": ServerError,
    "UNAUTHENTICATED": AuthenticationFailed,
    "FORBIDDEN": AuthenticationFailed,
    "UNKNOWN_SESSION": SessionLost,
    "UNKNOWN_CONTEXT": ServerError,
    "NO_FILE": ServerError,
    "FILE_ERROR": ServerError,
    "BAD_RANGE": ServerError,
    "OUT_OF_ORDER": ServerError,
    "TOO_LARGE": TooLarge,
    "TOO_SLOW": ServerUnavailable,
    "RATE_LIMITED": QuotaExceeded,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "CAPACITY_REACHED": CapacityReached,
    "NO_ROOM": CapacityReached,
    "DRAINING": ServerUnavailable,
    "SESSION_ERROR": ServerError,
    "FACTORY_ERROR": ServerUnavailable,
}

# Codes of errors about a file of a session, which are an OSError as locally.
FILE_CODES = frozenset({"NO_FILE", "FILE_ERROR", "TOO_LARGE"})
_ERRNOS = {name: number for number, name in errno.errorcode.items()}

# Close codes after which a new socket would not get the session back.
CLOSES: Mapping[int | None, tuple[type[ServerError], str]] = {
    1012: (SessionLost, "the server stopped"),
    4401: (AuthenticationFailed, "the server wants another API key"),
    4403: (AuthenticationFailed, "the server does not allow this"),
    4404: (SessionLost, "the server knows no such session"),
    TAKEN_OVER: (SessionLost, "another client has resumed the session"),
    IDLE: (SessionLost, "the session was idle for longer than the server allows"),
}

# HTTP statuses of bodies without a code: the answer of a proxy or another server.
STATUSES: Mapping[int, type[ServerError]] = {
    401: AuthenticationFailed,
    403: AuthenticationFailed,
    404: NotSupported,
    405: NotSupported,
    408: ServerUnavailable,  # a piece did not arrive completely within the server's time limit
    413: TooLarge,
    422: InvalidRequest,
    429: QuotaExceeded,
    502: ServerUnavailable,
    503: ServerUnavailable,
    504: ServerUnavailable,
    507: CapacityReached,
}

# Characters of a server's message, which may reach a terminal.
_LONGEST = 10_000
# Limits on the invalid fields in a server's refusal: those examined, as each is searched for in the
# message, and those named.
_ERRORS, _NAMED = 100, 5

# Advice by the client's argument.
_WHERE = {
    "UNAUTHENTICATED": " Here that is api_key=.",
    "UNKNOWN_PATH": "; is the path of base_url right?",
}

# The most common cause of such an answer, if it does not say.
_WITHOUT_REASON = {
    401: "it wants an API key, or a proxy before it does (api_key=, headers=)",
    403: "the API key may not do this, or the path of base_url is wrong",
    404: "there is nothing at this path; is that of base_url right?",
    413: "a proxy before the server takes less at once than the server does",
}


def error_of_refusal(refused: RefusalFrame, secrets: SecretTexts) -> REPLError:
    """Return the error for a refusal."""
    # Secrets are removed before the text is cut: half a key is a secret too.
    message = secrets.cut(_with_errors(refused))
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    if refused.code in AS_LOCALLY:
        return AS_LOCALLY[refused.code](replace(refused, message=message))
    # Longer text is not read, and all of it is searched for secrets.
    has_few_values = values([dict(refused.details)]) <= MAX_VALUES
    return ERRORS.get(refused.code, ServerError)(
        message + _WHERE.get(refused.code, ""),
        code=secrets.cut(refused.code),
        id=None if refused.log_id is None else secrets.cut(refused.log_id),
        retry_after=refused.retry_after,
        details=secrets.cut_all(refused.details) if has_few_values else {},
    )


def error_of_status(
    status: int, headers: Mapping[str, str], body: bytes, secrets: SecretTexts
) -> REPLError:
    """Return the error for an unexpected HTTP answer.

    The names of `headers` are in lower case.
    """
    if 300 <= status < 400:
        # Not followed: the key would go to the host that the answer names.
        return ServerError(
            f"the server redirects (status {status}) to "
            f"{_without_query(secrets.cut(headers.get('location', 'nowhere')))}; "
            "if that is it, make it the base_url",
            code="REDIRECTED",
        )
    refused = _refusal_in(body)
    # An answer to a handshake or an upload does not concern an episode.
    if refused is not None and refused.code not in AS_LOCALLY:
        return error_of_refusal(refused, secrets)
    kind, text = STATUSES.get(status, ServerError), f"the server answered with status {status}"
    if status in _WITHOUT_REASON:
        text = f"{text}: {_WITHOUT_REASON[status]}"
    return kind(text, code=f"HTTP_{status}")


def error_of_file(
    status: int, headers: Mapping[str, str], body: bytes, secrets: SecretTexts, path: str
) -> Exception:
    """Return the error for an unexpected answer about the file `path` of a session.

    The names of `headers` are in lower case. As locally, an error about the file is an OSError.
    """
    refused = _refusal_in(body)
    if refused is None:
        return error_of_status(status, headers, body, secrets)
    name = "EFBIG" if refused.code == "TOO_LARGE" else refused.details.get("errno")
    if refused.code in FILE_CODES and isinstance(name, str) and name in _ERRNOS:
        # An OSError adds the path to its text.
        message = refused.message.removesuffix(f": {path!r}")
        return OSError(_ERRNOS[name], visible(secrets.cut(message))[:_LONGEST], path)
    return error_of_refusal(refused, secrets)


def _with_errors(refused: RefusalFrame) -> str:
    """Return the message with the invalid fields, which OpenEnv's messages do not name."""
    errors, read = refused.details.get("errors"), refused.message[:_LONGEST]
    if not isinstance(errors, list):
        return refused.message
    named = [
        f"{'.'.join(str(part) for part in each['loc'] if isinstance(part, (str, int)))}: {text}"
        for each in errors[:_ERRORS]
        if isinstance(each, dict) and isinstance(each.get("loc"), list)
        if isinstance(text := each.get("msg"), str)
    ]
    new = [text for text in named if text not in read]
    return "; ".join([refused.message, *new[:_NAMED]])


def _refusal_in(body: bytes) -> RefusalFrame | None:
    try:
        decoded: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for name in ("data", "detail", "error"):
        if isinstance(decoded, dict) and isinstance(decoded.get(name), dict):
            decoded = decoded[name]
    if isinstance(decoded, dict) and isinstance(decoded.get("code"), str):
        return RefusalFrame.of(None, decoded)
    return None


def _without_query(url: str) -> str:
    return url.partition("?")[0][:200]
