"""Requests and replies of the endpoint (docs/endpoint.md): frames, models, errors. No I/O."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, from_json, to_json

from repl_env.common import binary_json
from repl_env.common.values import explain_not_json, replace_surrogates
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset, REPLError
from repl_env.models import REPLObservation, StepResult
from repl_sandbox.errors import SandboxError, SessionClosed

from .decoder_main import Type
from .json_codec import LARGE
from .tenants import RequestError

# Replies to requests, and their JSON. No I/O.

_BESIDE = {"reward", "done"}
_BESIDE_AND_METADATA = _BESIDE | {"metadata"}


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The outcome of a request. `data` is JSON text; `refusal` the error that it carries."""

    type: str
    data: str
    refusal: RequestError | None = None

    @classmethod
    def of_error(cls, refusal: RequestError) -> ServerReply:
        """The error reply for `refusal`."""
        return cls("error", text_of(refusal.data()), refusal)

    def frame(self, id: str | None) -> str:
        """The WebSocket frame that carries the reply."""
        if id is None:
            return f'{{"type":"{self.type}","data":{self.data}}}'
        return f'{{"type":"{self.type}","id":{text_of(id)},"data":{self.data}}}'


def text_of(value: Any) -> str:
    """`value` as JSON, with "?" for lone surrogates and null for non-finite numbers."""
    try:
        return to_json(value, inf_nan_mode="null").decode()
    except PydanticSerializationError:
        return to_json(_cleaned(value), inf_nan_mode="null").decode()


def model_text(model: BaseModel, exclude: set[str] | None = None) -> str:
    """A model as JSON, under the rules of `text_of`."""
    try:
        return model.__pydantic_serializer__.to_json(model, exclude=exclude).decode()
    except PydanticSerializationError:
        return text_of(_cleaned(model.model_dump(exclude=exclude)))


def observation_text(observation: Any, *, beside: bool) -> Iterator[str]:
    """Serialize an observation as OpenEnv's `StepResponse`; yields its large parts, then all of it.

    `beside`: repeat the metadata beside the observation, where OpenEnv's generic client reads it.
    """
    if beside and type(observation) is REPLObservation:
        # The metadata may hold a large answer, so it is serialized once for both places.
        metadata = text_of(observation.metadata)
        if len(metadata) >= LARGE:
            yield metadata
        inner = f'{model_text(observation, _BESIDE_AND_METADATA)[:-1]},"metadata":{metadata}}}'
        outer = f',"metadata":{metadata}' if observation.metadata else ""
    else:
        inner, outer = model_text(observation, _BESIDE), ""
        if beside and observation.metadata:
            outer = f',"metadata":{text_of(observation.metadata)}'
            if len(outer) >= LARGE:
                yield outer
    if len(inner) >= LARGE:
        yield inner
    reward, done = observation.reward, "true" if observation.done else "false"
    number = "null" if reward is None else repr(float(reward))
    yield f'{{"observation":{inner},"reward":{number},"done":{done}{outer}}}'


def _cleaned(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _cleaned(value.model_dump())
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(each) for each in value]
    return value


# `UploadReference`: the upload that a reset names as the value of one variable.


class UploadReference(BaseModel):
    """The upload with the hash `sha256`, decoded as `type`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    type: Type


# Bounded, because each reference is a variable, and an open file while the uploads are decoded.
References: TypeAlias = Annotated[dict[str, UploadReference], Field(max_length=256)]


# Types of requests, and the models that validate their arguments.

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# The client chooses the id; the server compares it with ids of earlier requests.
RequestId = Annotated[str, Field(min_length=1, max_length=64)]


class StrictModel(BaseModel):
    """A model that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


Content = Annotated[Any, BeforeValidator(binary_json.decoded)]


class ModelEndpoint(StrictModel):
    """A model for sub-calls: `repl_env.LLM` on the wire."""

    model: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    sampling: dict[str, JsonValue] = Field(default_factory=dict)


class ResetArguments(BaseModel):
    """The reset arguments that OpenEnv defines, and `uploads`; others go to the environment."""

    model_config = ConfigDict(extra="allow")

    seed: Annotated[int, Field(ge=0)] | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None
    uploads: References | None = None

    def given(self) -> dict[str, Any]:
        """The arguments that are not None, by name; values are not copied."""
        # Not by `getattr`: a client's argument may have the name of a method of this class.
        named = {**self.__dict__, **(self.model_extra or {})}
        return {name: value for name, value in named.items() if value is not None}


class REPLResetArguments(ResetArguments):
    """Reset arguments of a `REPLEnvironment`, in the encoding of `repl_env.common.binary_json`."""

    context: Any = None
    contexts: dict[str, Any] | None = None
    files: dict[str, Any] | None = None
    task_prompt: str | None = None
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    hf_token: SecretStr | None = None
    llm_model: str | None = None
    llm: ModelEndpoint | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    rlm_max_depth: Annotated[int, Field(ge=1)] | None = None
    rlm_max_iterations: Annotated[int, Field(ge=1)] | None = None


class FollowUpArguments(StrictModel):
    """Arguments of a further task in the same session."""

    task_prompt: str = ""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    expected_answer: JsonValue = None
    answer_schema: dict[str, JsonValue] | None = None
    variables: dict[str, Content] | None = None


class CancelArguments(StrictModel):
    """`request`: the id of the request to cancel."""

    request: RequestId


class RollbackArguments(StrictModel):
    """`cells`: the number of cells to undo."""

    cells: Annotated[int, Field(ge=1)] = 1


class BranchArguments(StrictModel):
    """`seed`: of the random numbers in the branch."""

    seed: Annotated[int, Field(ge=0)] | None = None


class ResumeArguments(StrictModel):
    """`token`: of the session to resume."""

    token: Annotated[str, Field(max_length=200)]


class NoArguments(StrictModel):
    """Arguments of a request that takes none."""


class AnyArguments(BaseModel):
    """Arguments that the handler of the request validates."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class RequestType:
    """`data`: the arguments' model, None for an action. `plain`: OpenEnv has the type too."""

    data: type[BaseModel] | None
    plain: bool = False
    needs_data: bool = False


KINDS: Mapping[str, RequestType] = {
    "reset": RequestType(AnyArguments, plain=True),
    "step": RequestType(None, plain=True, needs_data=True),
    "state": RequestType(NoArguments, plain=True),
    "mcp": RequestType(AnyArguments, plain=True, needs_data=True),
    "close": RequestType(NoArguments, plain=True),
    "open": RequestType(NoArguments),
    "resume": RequestType(ResumeArguments, needs_data=True),
    "cancel": RequestType(CancelArguments, needs_data=True),
    "variables": RequestType(NoArguments),
    "follow_up": RequestType(FollowUpArguments, needs_data=True),
    "draft": RequestType(NoArguments),
    "rollback": RequestType(RollbackArguments),
    "branch": RequestType(BranchArguments),
}


# Strict parsing of untrusted JSON: an object, finite numbers, valid Unicode, bounded depth.

# Errors reported for one value.
_MOST_ERRORS = 20


def read_object(text: str | bytes) -> dict[str, Any]:
    """Parse a text that must be a JSON object.

    Raises:
        RequestError: INVALID_JSON.
    """
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        # The parser's message gives a position in the text and quotes nothing of the text.
        raise RequestError("INVALID_JSON", f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("INVALID_JSON", f"must be a JSON object, not {_KINDS[type(value)]}")
    # Rejects excessive depth, and numbers that JSON cannot represent (1e999 parses as infinity).
    if problem := explain_not_json(value):
        raise RequestError("INVALID_JSON", problem)
    return value


def validation_error_of(
    found: Sequence[Mapping[str, Any]], where: Sequence[str | int] = ()
) -> RequestError:
    """The error for a value that pydantic rejected with the errors `found`.

    Names the fields and the reasons, but no values: a value may be a secret.
    """
    errors = [
        {"type": each["type"], "loc": [*where, *each["loc"]], "msg": each["msg"]}
        for each in found[:_MOST_ERRORS]
    ]
    place = ".".join(str(part) for part in errors[0]["loc"]) or "data"
    return RequestError("VALIDATION_ERROR", f"{place}: {errors[0]['msg']}", errors=errors)


def validation_error(place: str, message: str, kind: str = "value_error") -> RequestError:
    """The error for one invalid field."""
    errors = [{"type": kind, "loc": place.split("."), "msg": message}]
    return RequestError("VALIDATION_ERROR", f"{place}: {message}", errors=errors)


def validate(model: type[BaseModel], data: Any, where: Sequence[str | int] = ()) -> Any:
    """Validate `data` as `model`; raises RequestError VALIDATION_ERROR."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise validation_error_of(error.errors(), where) from None


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


# Map exceptions to the errors that clients see.
#
# A client never sees a traceback or a path of the host. The log has both, under the id of the
# error.

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


# Frames of WebSocket `/ws` (docs/endpoint.md): parse requests, reject invalid frames. No I/O.

_OPENENV = frozenset({"type", "data"})
_V1 = _OPENENV | {"id"}
_V1_STEP = _V1 | {"timeout_s", "stream"}
# Request types and the fields of their frames, by whether the socket speaks `repl-env.v1`.
_REQUESTS: dict[bool, dict[str, tuple[RequestType, frozenset[str]]]] = {
    False: {name: (kind, _OPENENV) for name, kind in KINDS.items() if kind.plain},
    True: {name: (kind, _V1_STEP if kind.data is None else _V1) for name, kind in KINDS.items()},
}

_seconds = TypeAdapter(Seconds | None)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A validated request. `data` of a step is its action; `size` counts the frame's characters."""

    type: str
    data: Any
    id: str | None = None
    timeout_s: float | None = None
    stream: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class InvalidFrame:
    """A frame that is no valid request. `id`: of the frame, if it has one; the error carries it."""

    refusal: RequestError
    id: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class FrameCodec:
    """Reads and writes the frames of one socket: of `repl-env.v1` if `is_v1`, else OpenEnv's."""

    action: type[BaseModel]
    is_v1: bool = False

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame:
        """Parse and validate a frame."""
        if not isinstance(frame, str):
            return InvalidFrame(
                RequestError("INVALID_JSON", "frames must be text, and this one is binary")
            )
        given: dict[str, Any] = {}
        try:
            given = read_object(frame)
            return self._request(given, len(frame))
        except RequestError as refusal:
            name = given.get("id") if self.is_v1 else None
            return InvalidFrame(refusal, name if _is_id(name) else None, len(frame))

    def write(self, id: str | None, reply: ServerReply) -> str:
        """The frame that carries a reply."""
        return reply.frame(id)

    def _request(self, given: dict[str, Any], size: int) -> ClientRequest:
        name, data = given.get("type"), given.get("data")
        known = _REQUESTS[self.is_v1].get(name) if isinstance(name, str) else None
        if known is None:
            raise _unknown_type(name)
        kind, fields = known
        if not given.keys() <= fields:
            raise validation_error(
                min(given.keys() - fields)[:40], "unknown field", "extra_forbidden"
            )
        if self.is_v1 and not _is_id(given.get("id")):
            raise validation_error("id", "must be a string of 1 to 64 characters")
        if data is None and not kind.needs_data:
            data = {}
        if not isinstance(data, dict):
            raise validation_error("data", "must be an object")
        if kind.data is None:
            data = validate(self.action, data)
        elif kind.data is not AnyArguments:
            data = validate(kind.data, data, ("data",))
        if not self.is_v1:
            return ClientRequest(str(name), data, size=size)
        timeout_s, stream = given.get("timeout_s"), given.get("stream", False)
        if timeout_s is not None:
            timeout_s = _timeout(timeout_s)
        if not isinstance(stream, bool):
            raise validation_error("stream", "must be true or false")
        return ClientRequest(str(name), data, given["id"], timeout_s, stream, size)


def _unknown_type(name: object) -> RequestError:
    if not isinstance(name, str):
        return validation_error("type", "must be a string")
    return RequestError("UNKNOWN_TYPE", f"unknown request type {name[:40]!r}")


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64


def _timeout(value: object) -> float | None:
    try:
        return _seconds.validate_python(value)
    except ValidationError as error:
        raise validation_error_of(error.errors(), ("timeout_s",)) from None
