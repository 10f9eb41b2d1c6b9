"""Requests of a client: a reset with its contexts and files, steps, uploads as bodies."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from repl_env.client import protocol
from repl_env.client.address import optional_seconds
from repl_env.client.protocol import RequestFrame
from repl_env.common.binary_json import UPLOAD, encoded
from repl_env.common.files import open_regular, read_regular
from repl_env.common.values import (
    is_table,
    json_text,
    of_public_kind,
    one_timeout,
    table_of,
    text_or_bytes,
)
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, type_adapter
from repl_env.episode.contexts import NAME, refused
from repl_env.errors import NotSupported
from repl_env.llm.completions import SecretTexts
from repl_env.llm.spec import LLM, check_forms
from repl_env.models import REPLAction, REPLObservation, REPLState, StepResult

if TYPE_CHECKING:
    from repl_env.client.connection import OutputCallback
    from repl_env.client.session import SessionClient
    from repl_env.client.uploads import OnUpload
    from repl_env.episode.contexts import Given
    from repl_sandbox.types import JSON


# Request data from the arguments of a client's methods.


def plain_int(value: Any) -> Any:
    """Return an integer of numpy as an int for JSON; the server refuses other values."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def check_callback(name: str, callback: object) -> None:
    """Raise TypeError naming the argument, unless it is None or callable."""
    if callback is not None and not callable(callback):
        raise TypeError(f"{name} must be a function, not {type(callback).__name__}")


def reentrant_request_error() -> RuntimeError:
    """Return the error for an `on_output` that calls its own client."""
    return RuntimeError(
        "on_output cannot ask its own client: the request would wait for the step, and the "
        "step for on_output; ask after the step, or ask another client"
    )


def check_named(name: str, value: object) -> None:
    """Raise TypeError naming the argument, unless it is None or a mapping."""
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{name} must be a dict, not {type(value).__name__}")


def checked_timeout(timeout_s: float | None, timeout: float | None) -> float | None:
    """Return a step's limit in seconds, under either name; TypeError or ValueError if invalid."""
    return optional_seconds(one_timeout(timeout_s, timeout), "timeout_s")


def action_data(action: REPLAction) -> dict[str, Any]:
    """Return the data of an action: the code, and fields that differ from their defaults."""
    of_public_kind(action, REPLAction, "action")
    data: dict[str, Any] = {"code": action.code}
    if action.is_final:
        data["is_final"] = True
    if action.final_answer is not None:
        json_text("final_answer", action.final_answer, any_keys=True)
        data["final_answer"] = action.final_answer
    if action.format_error is not None:
        data["format_error"] = action.format_error
    if action.metadata:
        json_text("metadata", action.metadata, any_keys=True)
        data["metadata"] = action.metadata
    return data


def follow_up_data(options: FollowUpOptions) -> dict[str, Any]:
    """Return the data of a follow-up."""
    variables = options.variables
    check_named("variables", variables)
    json_text("expected_answer", options.expected_answer, any_keys=True)
    data = {
        "task_prompt": options.task_prompt,
        "max_iterations": plain_int(options.max_iterations),
        "expected_answer": options.expected_answer,
        "answer_schema": schema_data(options.answer_schema),
        "variables": None if not variables else {n: _variable(n, v) for n, v in variables.items()},
    }
    return {name: value for name, value in data.items() if value is not None}


def _variable(name: str, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encoded(bytes(value))
    if (table := table_of(value)) is not None:
        return encoded(table)
    json_text(f"variables: {name}", value)
    return encoded(value)


def schema_data(schema: Any) -> Any:
    """Return an answer's schema as JSON: a type's schema checks answers but does not convert
    them.
    """
    if schema is None or isinstance(schema, dict):
        json_text("answer_schema", schema)
        return schema
    from pydantic.errors import PydanticUserError

    try:
        return type_adapter(schema).json_schema()
    except PydanticUserError as error:
        raise TypeError(f"answer_schema must be a JSON schema or a type: {error}") from error


# `LastValueCache`: keeps the last value made from a large object, so that callers share it.

MadeT = TypeVar("MadeT")
# Immutable types: the same object has the same content.
GivenT = TypeVar("GivenT", str, bytes)


class LastValueCache(Generic[MadeT]):
    """The last value made from a text or bytes, which the cache holds with it."""

    def __init__(self) -> None:
        self._last: tuple[object, MadeT] | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[MadeT]] = {}

    def of(self, value: GivenT, make: Callable[[GivenT], MadeT]) -> MadeT:
        """Return the result of `make` for `value`: found, awaited, or made."""
        self._check_process()
        with self._lock:
            if self._last is not None and self._last[0] is value:
                return self._last[1]
            pending = self._pending.get(id(value))
            future = None if pending is not None else self._pending.setdefault(id(value), Future())
        if pending is not None:
            return pending.result()
        assert future is not None
        try:
            future.set_result(make(value))
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[id(value)]
                self._last = (value, future.result()) if future.exception() is None else None
        return future.result()

    def forget(self, matches: Callable[[MadeT], bool]) -> None:
        """Drop the value, if it is the cached one."""
        self._check_process()
        with self._lock:
            if self._last is not None and matches(self._last[1]):
                self._last = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._begin()  # a fork: the thread that was making a value is not here


# Contexts and files in their wire form: inside the request, or uploaded as `UploadBody`.

# From this size on, in bytes, a context is uploaded by HTTP: uploads resume after a failure, all
# sessions share the context, and no ping waits behind it. Below, the extra request costs more.
LARGE = 1 << 20
# Bytes per read of a file: enough to hash at full speed, little to hold.
_CHUNK = 1 << 20

Kind: TypeAlias = Literal["text", "bytes", "json", "table"]
# Bytes of a body from an offset on, up to a limit.
Read: TypeAlias = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class UploadBody:
    """A context to upload. `open` gives access to its bytes, needed only to send it."""

    kind: Kind
    size: int
    sha256: str
    open: Callable[[], Read] = field(repr=False)
    name: str = ""

    @classmethod
    def of_text(cls, text: str) -> UploadBody:
        """Return the body of a text. Its UTF-8 form is made twice rather than held."""
        data = text.encode()
        return cls("text", len(data), _sha256(data), lambda: _reading(text.encode()))

    @classmethod
    def of_bytes(cls, data: bytes, kind: Kind = "bytes") -> UploadBody:
        """Return the body of bytes, JSON, or a table."""
        return cls(kind, len(data), _sha256(data), lambda: _reading(data))

    @classmethod
    def of_file(cls, path: Path) -> UploadBody:
        """Return the body of a file that is never held whole: text without a BOM if UTF-8, else
        bytes.
        """
        with open_regular(path) as file:
            start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        body = cls._of_file(path, start)
        return body if body.kind == "text" or not start else cls._of_file(path, 0)

    @classmethod
    def _of_file(cls, path: Path, start: int) -> UploadBody:
        digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
        kind: Kind = "text"
        size = 0
        for chunk in _chunks(path, start):
            digest.update(chunk)
            size += len(chunk)
            kind = _still_text(decoder, chunk, kind)
        kind = _still_text(decoder, b"", kind, final=True)

        def read(offset: int, limit: int) -> bytes:
            with open_regular(path) as file:
                file.seek(start + offset)
                return file.read(limit)

        return cls(kind, size, digest.hexdigest(), lambda: read)


# The last body of an immutable value: the rollouts of a group begin with one context each.
LATEST: LastValueCache[UploadBody] = LastValueCache()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _reading(data: bytes) -> Read:
    view = memoryview(data)
    return lambda offset, limit: bytes(view[offset : offset + limit])


def _chunks(path: Path, start: int) -> Iterator[bytes]:
    with open_regular(path) as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            yield chunk


def _still_text(
    decoder: codecs.IncrementalDecoder, chunk: bytes, kind: Kind, *, final: bool = False
) -> Kind:
    if kind == "text":
        try:
            decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return "bytes"
    return kind


def packed(name: str, value: Given, *, upload_from: float = LARGE) -> Any:
    """Return a context as it stands in a request, or its UploadBody.

    Raises:
        TypeError, ValueError: naming the context, if it is invalid or JSON cannot carry it.
        OSError: a Path cannot be read.
    """
    if isinstance(value, Path):
        if value.stat().st_size >= upload_from:
            return replace(UploadBody.of_file(value), name=name)
        value = text_or_bytes(read_regular(value))
    found: Any = value
    if isinstance(value, (list, dict)):
        found = _packed_json(name, value, upload_from)
    elif isinstance(value, str):
        found = _packed_text(value, upload_from)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)  # the same object, if it is bytes
        found = LATEST.of(data, UploadBody.of_bytes) if len(data) >= upload_from else encoded(data)
    elif (table := table_of(value)) is not None:
        is_large = len(table.data) >= upload_from
        found = UploadBody.of_bytes(table.data, "table") if is_large else encoded(table)
    else:
        raise refused(name, value)
    return replace(found, name=name) if isinstance(found, UploadBody) else found


def _packed_json(name: str, value: Any, upload_from: float) -> Any:
    text = json_text(name, value)
    if len(text) < upload_from / 4 or len(data := text.encode()) < upload_from:
        return encoded(value)
    return UploadBody.of_bytes(data, "json")


def _packed_text(text: str, upload_from: float) -> str | UploadBody:
    if len(text) < upload_from / 4:  # a character is at most four bytes
        return text
    try:
        if len(text) < upload_from and len(text.encode()) < upload_from:
            return text
        return LATEST.of(text, UploadBody.of_text)
    except UnicodeEncodeError:  # lone surrogates: JSON has an escape for them, UTF-8 does not
        return text


def packed_file(path: str, value: object, *, upload_from: float = LARGE) -> Any:
    """Return a file as it stands in a request, or its UploadBody.

    Raises:
        TypeError: naming the file, if it is invalid.
        OSError: a Path cannot be read.
    """
    name = f"files: {path!r}"
    if isinstance(value, (str, bytes, bytearray, memoryview, Path)):
        content: Any = value
        return packed(name, content, upload_from=upload_from)
    raise TypeError(f"{name} must be bytes, str or a Path, not {type(value).__name__}")


def is_small(value: Given | None) -> bool:
    """Return whether packing the value is too quick for an event loop to notice."""
    if value is None:
        return True
    return isinstance(value, (str, bytes)) and len(value) < LARGE / 4


NEVER_LARGE = math.inf


# The data of a reset for a server, and the contexts and files to upload before.

# Arguments of a reset that OpenEnv's environment lacks. Its server drops them silently.
_NOT_IN_OPENENV = ("contexts", "files", "llm", "answer_schema")


_COUNTS = ("max_iterations", "seed", "rlm_max_depth", "rlm_max_iterations")


def check_reset(options: ResetOptions) -> None:
    """Raise TypeError or ValueError naming an invalid or contradictory argument."""
    check_named("contexts", options.contexts)
    check_named("files", options.files)
    check_forms(options.llm, options.llm_model, options.hf_token)
    if options.context is not None and NAME in (options.contexts or {}):
        raise ValueError("contexts must not have the name 'context' when context is given")


def register_secrets(options: ResetOptions, secrets: SecretTexts) -> None:
    """Add the model's secrets to `secrets`: a server may repeat them."""
    secrets.learn(options.hf_token, {})
    if options.llm is not None:
        texts = {n: v for n, v in options.llm.headers.items() if isinstance(v, str)}
        secrets.learn(options.llm.api_key, texts, options.llm.base_url)


async def reset_data(
    options: ResetOptions, *, native: bool
) -> tuple[dict[str, Any], list[UploadBody]]:
    """Return the data to send and the bodies to upload before.

    `native`: the server is one of this project.

    Raises:
        TypeError, ValueError, OSError: naming the argument.
        NotSupported: the server has no such argument.
    """
    if not native:
        _check_openenv(options)
    values = [options.context, *(options.contexts or {}).values()]
    if options.files is None and all(map(is_small, values)):
        return _data(options, native)
    return await asyncio.to_thread(_data, options, native)


def _check_openenv(options: ResetOptions) -> None:
    for name in _NOT_IN_OPENENV:
        if getattr(options, name) is not None:
            raise NotSupported(f"{name}: this server knows OpenEnv's arguments alone")
    if isinstance(options.context, (bytes, bytearray, memoryview)):
        raise NotSupported("context: this server takes no bytes")
    if is_table(options.context):
        raise NotSupported("context: this server takes no tables; to_csv() makes a text of it")


def _data(options: ResetOptions, native: bool) -> tuple[dict[str, Any], list[UploadBody]]:
    upload_from = LARGE if native else NEVER_LARGE
    contexts = {NAME: options.context, **(options.contexts or {})}
    packed_values = {
        name: packed(name, context, upload_from=upload_from)
        for name, context in contexts.items()
        if context is not None
    }
    bodies = [
        packed_value
        for packed_value in packed_values.values()
        if isinstance(packed_value, UploadBody)
    ]
    inside = {
        name: each for name, each in packed_values.items() if not isinstance(each, UploadBody)
    }
    data = _others(options)
    if NAME in inside:
        data[NAME] = inside.pop(NAME)
    if inside:
        data["contexts"] = inside
    if bodies:
        data["uploads"] = {p.name: {"sha256": p.sha256, "type": p.kind} for p in bodies}
    if options.files is not None:
        data["files"], more = _with_files(options.files, upload_from)
        bodies += more
    return data, bodies


def _others(options: ResetOptions) -> dict[str, Any]:
    converted = {
        "context": None,
        "contexts": None,
        "files": None,
        "llm": None if options.llm is None else _llm(options.llm),
        "answer_schema": schema_data(options.answer_schema),
    }
    values = {each.name: getattr(options, each.name) for each in fields(options)} | converted
    values |= {name: plain_int(values[name]) for name in _COUNTS}
    json_text("expected_answer", options.expected_answer, any_keys=True)
    return {name: value for name, value in values.items() if value is not None}


def _with_files(
    files: Mapping[str, str | bytes | Path], upload_from: float
) -> tuple[dict[str, Any], list[UploadBody]]:
    """Return files as they stand in a request, and those to upload first."""
    packed_values = {
        str(path): packed_file(path, content, upload_from=upload_from)
        for path, content in files.items()
    }
    bodies = {
        packed_value.sha256: packed_value
        for packed_value in packed_values.values()
        if isinstance(packed_value, UploadBody)
    }
    data = {
        path: {UPLOAD: each.sha256} if isinstance(each, UploadBody) else each
        for path, each in packed_values.items()
    }
    return data, [*bodies.values()]


def _llm(llm: LLM) -> dict[str, Any]:
    data = {
        "model": llm.model,
        "base_url": llm.base_url,
        "api_key": llm.api_key,
        "headers": dict(llm.headers),
        "sampling": dict(llm.sampling),
    }
    json_text("llm", data)
    return {name: value for name, value in data.items() if value}


# `EpisodeRequests`: the requests of an episode on a server, with checked arguments and results.

Result = StepResult[REPLObservation]


class EpisodeRequests:
    """The requests of an episode, in the current session of a `SessionClient`.

    An OpenEnv server knows fewer of them: NotSupported names the one or the argument that it lacks.
    """

    def __init__(self, session_client: SessionClient) -> None:
        self._session_client = session_client

    async def reset(self, options: ResetOptions, on_upload: OnUpload | None) -> Result:
        """Begin an episode, in a new session of the engine."""
        check_reset(options)
        check_callback("on_upload", on_upload)
        return protocol.step_result(await self._session_client.reset(options, on_upload))

    async def step(
        self, action: REPLAction, timeout_s: float | None, on_output: OutputCallback | None
    ) -> Result:
        """Take a step; `on_output` gets the output as it arrives, or at the end from OpenEnv's."""
        data = action_data(action)
        check_callback("on_output", on_output)
        native = self._session_client.require_pipeline().native
        if timeout_s is not None and not native:
            raise NotSupported("timeout_s: this server takes none, and has a limit of its own")
        if action.format_error is not None and not native:
            raise NotSupported("format_error: this server has no such step, and would run code")
        stream = native and on_output is not None
        request = RequestFrame("step", data, timeout_s, stream)
        result = protocol.step_result(
            await self._session_client.ask(request, on_output if stream else None)
        )
        if on_output is not None and not stream:
            await _replay_output(result, on_output)
        return result

    async def follow_up(self, options: FollowUpOptions) -> Result:
        """Begin another episode in the session that is there."""
        request = RequestFrame("follow_up", follow_up_data(options))
        return protocol.step_result(await self._session_client.ask(request))

    async def draft(self) -> JSON:
        """Return the present value of `answer["content"]`, or None."""
        found: JSON = (await self._session_client.ask(RequestFrame("draft"))).get("value")
        return found

    async def state(self) -> REPLState:
        """Return the episode so far."""
        return protocol.reply_state(await self._session_client.ask(RequestFrame("state")))

    async def variable_names(self) -> list[str]:
        """Return the names in the session."""
        if not self._session_client.require_pipeline().native:
            return (await self.state()).namespace_keys
        return list(map(str, await self._field(RequestFrame("variables"), "names", list)))

    async def rollback(self, cells: int) -> tuple[str, ...]:
        """Undo the last `cells` cells; return descriptions of what could not be restored."""
        request = RequestFrame("rollback", {"cells": plain_int(cells)})
        return tuple(map(str, await self._field(request, "lost", list)))

    async def branch(self, seed: int | None) -> SessionClient:
        """Return the client of a copy of the session."""
        request = RequestFrame("branch", {} if seed is None else {"seed": plain_int(seed)})
        token = await self._field(request, "token", str)
        return await self._session_client.new_sibling(token)

    async def _field(self, request: RequestFrame, name: str, kind: type[Any]) -> Any:
        return protocol.reply_field(await self._session_client.ask(request), name, kind)


async def _replay_output(result: Result, on_output: OutputCallback) -> None:
    printed = result.observation.result
    for stream, text in (("stdout", printed.stdout), ("stderr", printed.stderr)):
        returned = on_output(stream, text) if text else None
        if isawaitable(returned):
            await returned
