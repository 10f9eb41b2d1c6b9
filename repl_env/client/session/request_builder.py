"""Request data from the arguments of a client's methods."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_env.client.connection.timeouts import optional_seconds
from repl_env.client.upload.upload_body import (
    LARGE,
    NEVER_LARGE,
    UploadBody,
    is_small,
    packed,
    packed_file,
)
from repl_env.common.argument_checks import of_public_kind, one_timeout
from repl_env.common.binary_json import UPLOAD, encoded
from repl_env.common.json_values import json_text
from repl_env.episode.answer_schemas.type_schema import type_adapter
from repl_env.episode.contexts import NAME
from repl_env.errors import NotSupported
from repl_env.llm.endpoints.endpoint_errors import SecretTexts
from repl_env.llm.model_spec import LLM, check_forms
from repl_env.models import REPLAction

if TYPE_CHECKING:
    from repl_env.episode.contexts import Given

# Arguments of a reset that OpenEnv's environment lacks. Its server drops them silently.
_NOT_IN_OPENENV = ("contexts", "files", "llm", "answer_schema")


_COUNTS = ("max_iterations", "seed", "rlm_max_depth", "rlm_max_iterations")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetArguments:
    """The arguments of `REPLEnv.reset`; None is not sent and means the server's default."""

    context: Given | None = field(default=None, repr=False)
    contexts: Mapping[str, Given] | None = field(default=None, repr=False)
    files: Mapping[str, str | bytes | Path] | None = field(default=None, repr=False)
    task_prompt: str | None = None
    max_iterations: int | None = None
    seed: int | None = None
    episode_id: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    llm_model: str | None = None
    llm: LLM | None = None
    expected_answer: Any = field(default=None, repr=False)
    answer_schema: Any = None
    rlm_max_depth: int | None = None
    rlm_max_iterations: int | None = None

    def check(self) -> None:
        """Raise TypeError or ValueError naming an invalid or contradictory argument."""
        _check_named("contexts", self.contexts)
        _check_named("files", self.files)
        check_forms(self.llm, self.llm_model, self.hf_token)
        if self.context is not None and NAME in (self.contexts or {}):
            raise ValueError("contexts must not have the name 'context' when context is given")

    def register_secrets(self, secrets: SecretTexts) -> None:
        """Add the model's secrets to `secrets`: a server may repeat them."""
        secrets.learn(self.hf_token, {})
        if self.llm is not None:
            texts = {n: v for n, v in self.llm.headers.items() if isinstance(v, str)}
            secrets.learn(self.llm.api_key, texts, self.llm.base_url)

    async def data(self, *, native: bool) -> tuple[dict[str, Any], list[UploadBody]]:
        """Return the data to send and the bodies to upload before; `native`: for a server of this
        project.

        Raises:
            TypeError, ValueError, OSError: naming the argument.
            NotSupported: the server has no such argument.
        """
        if not native:
            self._check_plain()
        given = [self.context, *(self.contexts or {}).values()]
        if self.files is None and all(map(is_small, given)):
            return self._data(native)
        return await asyncio.to_thread(self._data, native)

    def _check_plain(self) -> None:
        for name in _NOT_IN_OPENENV:
            if getattr(self, name) is not None:
                raise NotSupported(f"{name}: this server knows OpenEnv's arguments alone")
        if isinstance(self.context, (bytes, bytearray, memoryview)):
            raise NotSupported("context: this server takes no bytes")

    def _data(self, native: bool) -> tuple[dict[str, Any], list[UploadBody]]:
        upload_from = LARGE if native else NEVER_LARGE
        contexts = {NAME: self.context, **(self.contexts or {})}
        packed_values = {
            name: packed(name, given, upload_from=upload_from)
            for name, given in contexts.items()
            if given is not None
        }
        bodies = [each for each in packed_values.values() if isinstance(each, UploadBody)]
        inside = {
            name: each for name, each in packed_values.items() if not isinstance(each, UploadBody)
        }
        data = self._others()
        if NAME in inside:
            data[NAME] = inside.pop(NAME)
        if inside:
            data["contexts"] = inside
        if bodies:
            data["uploads"] = {p.name: {"sha256": p.sha256, "type": p.kind} for p in bodies}
        if self.files is not None:
            data["files"], more = _with_files(self.files, upload_from)
            bodies += more
        return data, bodies

    def _others(self) -> dict[str, Any]:
        made = {
            "context": None,
            "contexts": None,
            "files": None,
            "llm": None if self.llm is None else _llm(self.llm),
            "answer_schema": _schema(self.answer_schema),
        }
        values = {each.name: getattr(self, each.name) for each in fields(self)} | made
        values |= {name: plain_int(values[name]) for name in _COUNTS}
        json_text("expected_answer", self.expected_answer, any_keys=True)
        return {name: value for name, value in values.items() if value is not None}


def plain_int(value: Any) -> Any:
    """Return an integer of numpy as an int for JSON; the server refuses other values."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _with_files(
    files: Mapping[str, str | bytes | Path], upload_from: float
) -> tuple[dict[str, Any], list[UploadBody]]:
    """Return files as they stand in a request, and those to upload first."""
    packed_values = {
        str(path): packed_file(path, given, upload_from=upload_from)
        for path, given in files.items()
    }
    bodies = {each.sha256: each for each in packed_values.values() if isinstance(each, UploadBody)}
    data = {
        path: {UPLOAD: each.sha256} if isinstance(each, UploadBody) else each
        for path, each in packed_values.items()
    }
    return data, [*bodies.values()]


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


def _check_named(name: str, given: object) -> None:
    if not isinstance(given, Mapping | None):
        raise TypeError(f"{name} must be a dict, not {type(given).__name__}")


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


def follow_up_data(
    task_prompt: str,
    max_iterations: int | None,
    expected_answer: Any,
    answer_schema: Any,
    variables: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the data of a follow-up."""
    _check_named("variables", variables)
    json_text("expected_answer", expected_answer, any_keys=True)
    data = {
        "task_prompt": task_prompt,
        "max_iterations": plain_int(max_iterations),
        "expected_answer": expected_answer,
        "answer_schema": _schema(answer_schema),
        "variables": None if not variables else {n: _variable(n, v) for n, v in variables.items()},
    }
    return {name: value for name, value in data.items() if value is not None}


def _variable(name: str, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encoded(bytes(value))
    json_text(f"variables: {name}", value)
    return encoded(value)


def _llm(llm: LLM) -> dict[str, Any]:
    given = {
        "model": llm.model,
        "base_url": llm.base_url,
        "api_key": llm.api_key,
        "headers": dict(llm.headers),
        "sampling": dict(llm.sampling),
    }
    json_text("llm", given)
    return {name: value for name, value in given.items() if value}


def _schema(schema: Any) -> Any:
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
