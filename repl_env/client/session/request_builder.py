"""From the arguments of a client's methods to the data of requests."""

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

# Arguments of a reset that OpenEnv's environment does not have. Its server drops such, silently.
_OURS = ("contexts", "files", "llm", "answer_schema")


_COUNTS = ("max_iterations", "seed", "rlm_max_depth", "rlm_max_iterations")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetArguments:
    """The arguments of `REPLEnv.reset`; what is None is not sent, and is as the server has it."""

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
        """Refuse what is wrong, or contradicts itself; TypeError or ValueError naming it."""
        _check_named("contexts", self.contexts)
        _check_named("files", self.files)
        check_forms(self.llm, self.llm_model, self.hf_token)
        if self.context is not None and NAME in (self.contexts or {}):
            raise ValueError("contexts must not have the name 'context' when context is given")

    def keep_in(self, secrets: SecretTexts) -> None:
        """Have `secrets` know those of the model that is to answer: a server may repeat them."""
        secrets.learn(self.hf_token, {})
        if self.llm is not None:
            texts = {n: v for n, v in self.llm.headers.items() if isinstance(v, str)}
            secrets.learn(self.llm.api_key, texts, self.llm.base_url)

    async def data(self, *, named: bool) -> tuple[dict[str, Any], list[UploadBody]]:
        """What is sent, and what is uploaded before that; `named`: to a server of our own.

        Raises:
            TypeError, ValueError, OSError: naming the argument.
            NotSupported: the server has no such argument.
        """
        if not named:
            self._check_plain()
        given = [self.context, *(self.contexts or {}).values()]
        if self.files is None and all(map(is_small, given)):
            return self._data(named)
        return await asyncio.to_thread(self._data, named)

    def _check_plain(self) -> None:
        for name in _OURS:
            if getattr(self, name) is not None:
                raise NotSupported(f"{name}: this server knows OpenEnv's arguments alone")
        if isinstance(self.context, (bytes, bytearray, memoryview)):
            raise NotSupported("context: this server takes no bytes")

    def _data(self, named: bool) -> tuple[dict[str, Any], list[UploadBody]]:
        large = LARGE if named else NEVER_LARGE
        contexts = {NAME: self.context, **(self.contexts or {})}
        held = {
            name: packed(name, given, large=large)
            for name, given in contexts.items()
            if given is not None
        }
        parcels = [each for each in held.values() if isinstance(each, UploadBody)]
        inside = {name: each for name, each in held.items() if not isinstance(each, UploadBody)}
        data = self._others()
        if NAME in inside:
            data[NAME] = inside.pop(NAME)
        if inside:
            data["contexts"] = inside
        if parcels:
            data["uploads"] = {p.name: {"sha256": p.sha256, "type": p.kind} for p in parcels}
        if self.files is not None:
            data["files"], more = _with_files(self.files, large)
            parcels += more
        return data, parcels

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
    """An int of numpy's, as one that JSON carries; what is none is the server's to refuse."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _with_files(
    files: Mapping[str, str | bytes | Path], large: float
) -> tuple[dict[str, Any], list[UploadBody]]:
    """Files as they stand in a request, and those that are uploaded before it."""
    held = {str(path): packed_file(path, given, large=large) for path, given in files.items()}
    parcels = {each.sha256: each for each in held.values() if isinstance(each, UploadBody)}
    data = {
        path: {UPLOAD: each.sha256} if isinstance(each, UploadBody) else each
        for path, each in held.items()
    }
    return data, [*parcels.values()]


def check_callback(name: str, hear: object) -> None:
    """TypeError naming it, if it is neither None nor to be called."""
    if hear is not None and not callable(hear):
        raise TypeError(f"{name} must be a function, not {type(hear).__name__}")


def asks_itself() -> RuntimeError:
    """The error of an `on_output` that asks the client of its step."""
    return RuntimeError(
        "on_output cannot ask its own client: the request would wait for the step, and the "
        "step for on_output; ask after the step, or ask another client"
    )


def _check_named(name: str, given: object) -> None:
    if not isinstance(given, Mapping | None):
        raise TypeError(f"{name} must be a dict, not {type(given).__name__}")


def checked_timeout(timeout_s: float | None, timeout: float | None) -> float | None:
    """A step's limit in seconds, by either name; TypeError or ValueError if it is none."""
    return optional_seconds(one_timeout(timeout_s, timeout), "timeout_s")


def action_data(action: REPLAction) -> dict[str, Any]:
    """An action as it is sent: what is not as by default, and the code."""
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


def following_data(
    task_prompt: str,
    max_iterations: int | None,
    expected_answer: Any,
    answer_schema: Any,
    variables: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A follow-up as it is sent."""
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
    """An answer's schema as JSON: a type's own one checks, but converts nothing any more."""
    if schema is None or isinstance(schema, dict):
        json_text("answer_schema", schema)
        return schema
    from pydantic.errors import PydanticUserError

    try:
        return type_adapter(schema).json_schema()
    except PydanticUserError as error:
        raise TypeError(f"answer_schema must be a JSON schema or a type: {error}") from error
