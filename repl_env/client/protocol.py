"""Frames of a client, replies as results, and refusals as errors, by tables of codes."""

from __future__ import annotations

import errno
import json
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from repl_env.common.values import more_values, replace_surrogates, visible
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
from repl_env.llm.completions import SecretTexts
from repl_env.models import CodeBlockResult, REPLObservation, REPLState, StepResult, result_of

# Encoding of requests and decoding of server frames, as in docs/endpoint.md. No I/O.

# The type of the reply to each request.
REPLIES: Mapping[str, str] = {
    "open": "session",
    "resume": "session",
    "reset": "observation",
    "step": "observation",
    "state": "state",
    "variables": "variables",
    "follow_up": "observation",
    "draft": "draft",
    "rollback": "rollback",
    "branch": "branch",
}
# Values in the lists and objects of one reply; the longest, of variables, has 10,000.
MAX_VALUES = 100_000
# Values in a whole frame: an answer has a quarter at most, and may be repeated. Each takes 60 bytes
# or more for three on the wire, and 100 MiB may arrive.
_MAX_IN_FRAME = 1 << 20
# The escape of a surrogate, which JSON uses for characters beyond the first 65,536.
_SURROGATE = re.compile(r"\\u[dD][89abAB]")
# Requests that OpenEnv has too.
PLAIN = frozenset({"reset", "step", "state"})


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request. `timeout_s`: limit of a step's execution; `stream`: whether to send its output."""

    type: str
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout_s: float | None = None
    stream: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def encoded_for_openenv(self) -> bytes:
        """Return the frame for OpenEnv's servers, which forbid further fields."""
        return _json({"type": self.type, **self._data}, "backslashreplace")

    def encoded(self) -> bytes:
        """Return the frame of `repl-env.v1`.

        A lone surrogate, which servers reject as invalid JSON, becomes a question mark in a step: a
        policy's text must not cause an error for the caller.

        Raises:
            ValueError: another request contains one.
        """
        more: dict[str, Any] = {}
        if self.timeout_s is not None:
            more["timeout_s"] = self.timeout_s
        if self.stream:
            more["stream"] = True
        frame = {"type": self.type, "id": self.id, **self._data, **more}
        try:
            return _json(frame, "replace" if self.type == "step" else "strict")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{self.type}: a text has the lone surrogate {error.object[error.start]!r}, which "
                "is no Unicode: text.encode('utf-8', 'replace').decode() replaces it"
            ) from None

    @property
    def _data(self) -> dict[str, Any]:
        return {} if self.data is None else {"data": self.data}


@dataclass(frozen=True, slots=True)
class ReplyFrame:
    """The reply to a request."""

    type: str
    id: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefusalFrame:
    """A refused request; `details` are the optional fields."""

    id: str | None
    code: str
    message: str
    log_id: str | None = None
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str | None, data: Mapping[str, Any]) -> RefusalFrame:
        """Return the refusal with these fields; fields of another type are ignored."""
        code, message, log_id = data.get("code"), data.get("message"), data.get("id")
        known = {"code", "message", "id", "retry_after"}
        return cls(
            id,
            code if isinstance(code, str) else "UNKNOWN",
            message if isinstance(message, str) else "the server gave no reason",
            log_id if isinstance(log_id, str) else None,
            number_or_none(data.get("retry_after")),
            {name: value for name, value in data.items() if name not in known},
        )


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """A piece of a running step's output; `dropped` characters after it were left out."""

    id: str
    stream: str
    text: str
    dropped: int = 0


def number_or_none(value: object) -> float | None:
    """Return `value` if it is a finite number of at least 0 that a float can hold."""
    right = isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max
    return float(value) if right else None  # type: ignore[arg-type]


def values(value: list[Any]) -> int:
    """Return the number of values in nested lists and objects."""
    count = 0
    containers: list[list[Any] | dict[str, Any]] = [value]
    while containers:
        inner = containers.pop()
        count += len(inner)
        each = inner.values() if isinstance(inner, dict) else inner
        containers += [value for value in each if isinstance(value, (list, dict))]
    return count


Frame: TypeAlias = ReplyFrame | RefusalFrame | OutputFrame


def read_frame(frame: str | bytes) -> Frame:
    """Parse a frame; BadReply if this client does not know it."""
    if not isinstance(frame, str):
        raise BadReply("the server sent a binary frame")
    if more_values(frame, _MAX_IN_FRAME):
        raise BadReply(f"the server sent a frame of over {_MAX_IN_FRAME:,} values")
    try:
        decoded = json.loads(frame)
        if _SURROGATE.search(frame):  # perhaps a lone surrogate, which valid texts do not contain
            decoded = json.loads(replace_surrogates(json.dumps(decoded, ensure_ascii=False)))
    except (ValueError, RecursionError):
        raise BadReply("the server sent a frame that is no JSON") from None
    if not isinstance(decoded, dict) or not isinstance(decoded.get("data", {}), dict):
        raise BadReply("the server sent a frame that is no object with an object in it")
    kind, name, data = decoded.get("type"), decoded.get("id"), decoded.get("data", {})
    if not isinstance(kind, str) or not isinstance(name, str | None):
        raise BadReply("the server sent a frame without a type, or with an id that is no text")
    if kind == "error":
        return RefusalFrame.of(name, data)
    return _output(name, data) if kind == "output" else ReplyFrame(kind, name, data)


def _output(name: str | None, data: Mapping[str, Any]) -> OutputFrame:
    stream, text, dropped = data.get("stream"), data.get("text", ""), data.get("dropped", 0)
    known = stream in ("stdout", "stderr") and isinstance(text, str) and isinstance(dropped, int)
    if name is None or not known:
        raise BadReply("the server sent output of an unknown form")
    return OutputFrame(name, str(stream), text, dropped)


def _json(value: Any, surrogates: str) -> bytes:
    """Parse UTF-8; `errors` names the codec error handler for lone surrogates."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", surrogates)


# The refusal codes of docs/endpoint.md, in one table.
#
# The server sends them, the client raises an error for each (`repl_env.errors`).

SUBPROTOCOL = "repl-env.v1"

# Close codes of a WebSocket (RFC 6455, section 7.4) that concern no request.
TAKEN_OVER = 4001
IDLE = 4408
OVER_QUOTA = 4429
DOES_NOT_READ = 1008
TRY_AGAIN = 1013


@dataclass(frozen=True, slots=True)
class RefusalCode:
    """The transport of a refusal: the HTTP status, and the close code if it ends a socket."""

    status: int
    close: int | None = None


CODES = {
    "INVALID_JSON": RefusalCode(400),
    "UNKNOWN_TYPE": RefusalCode(400),
    "UNKNOWN_PATH": RefusalCode(404),
    "UNKNOWN_TASK": RefusalCode(400),
    "NOT_SUPPORTED": RefusalCode(501),
    "WRONG_METHOD": RefusalCode(405),
    "VALIDATION_ERROR": RefusalCode(422),
    "NOT_RESET": RefusalCode(409),
    "EPISODE_DONE": RefusalCode(409),
    "EXECUTION_ERROR": RefusalCode(409),
    "EPISODE_ABORTED": RefusalCode(409),
    "UNAUTHENTICATED": RefusalCode(401, 4401),
    "FORBIDDEN": RefusalCode(403, 4403),
    "UNKNOWN_SESSION": RefusalCode(404, 4404),
    "UNKNOWN_CONTEXT": RefusalCode(404),
    "NO_FILE": RefusalCode(404),
    "FILE_ERROR": RefusalCode(409),
    "BAD_RANGE": RefusalCode(416),
    "OUT_OF_ORDER": RefusalCode(409),
    "TOO_LARGE": RefusalCode(413),
    "TOO_SLOW": RefusalCode(408, 1008),
    "RATE_LIMITED": RefusalCode(429),
    "QUOTA_EXCEEDED": RefusalCode(429),
    "CAPACITY_REACHED": RefusalCode(503, 1000),
    "NO_ROOM": RefusalCode(507),
    "DRAINING": RefusalCode(503, 1012),
    "SESSION_ERROR": RefusalCode(500, 1011),
    "FACTORY_ERROR": RefusalCode(503, 1011),
}


# Results from the data of replies.
#
# Fields are validated as in an environment's own models. Unknown fields are dropped: servers may
# be newer than their clients.

Result = StepResult[REPLObservation]
_ModelT = TypeVar("_ModelT", bound=BaseModel)
_OBSERVATION = frozenset(REPLObservation.model_fields)
_RESULT = frozenset(CodeBlockResult.model_fields)


def step_result(data: Mapping[str, Any]) -> Result:
    """Return the result in an observation's data.

    OpenEnv sends reward and done next to the observation, and metadata next to or inside it.
    """
    inner = data.get("observation")
    if not isinstance(inner, dict):
        raise BadReply("the server sent a result without an observation")
    fields = {name: inner[name] for name in inner.keys() & _OBSERVATION}
    result = fields.get("result")
    if isinstance(result, dict):
        fields["result"] = {name: result[name] for name in result.keys() & _RESULT}
    for name in ("reward", "done", "metadata"):
        if data.get(name) is not None:
            fields[name] = data[name]
    return result_of(_checked(REPLObservation, fields))


def reply_state(data: Mapping[str, Any]) -> REPLState:
    """Return the state in a reply."""
    return _checked(REPLState, data)


def reply_field(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return one field of a reply, checked to be of this type."""
    value = data.get(name)
    if not isinstance(value, kind):
        raise BadReply(f"the server sent a reply whose {name!r} is no {kind.__name__}")
    return value


def _checked(model: type[_ModelT], fields: Mapping[str, Any]) -> _ModelT:
    # Each invalid value becomes an error of hundreds of bytes before the first one is reported.
    if values([fields.get(name) for name in model.model_fields if name != "metadata"]) > MAX_VALUES:
        raise BadReply(f"the server sent no {model.__name__}; it has over {MAX_VALUES:,} values")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        message = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        raise BadReply(f"the server sent no {model.__name__}; {message}") from None


# Errors for refusals: tables of codes, close codes and HTTP statuses.


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


# Codes of the table above with errors that local environments have too,
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
    "UNKNOWN_TASK": InvalidRequest,
    "NOT_SUPPORTED": NotSupported,
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
    4401: (AuthenticationFailed, "the API key was revoked, has expired, or is another one"),
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
    "UNAUTHENTICATED": "; here that is api_key=",
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
