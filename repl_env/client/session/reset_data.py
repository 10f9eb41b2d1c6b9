"""The data of a reset for a server, and the contexts and files to upload before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from repl_env.client.session.request_builder import check_named, plain_int, schema_data
from repl_env.client.upload.upload_body import (
    LARGE,
    NEVER_LARGE,
    UploadBody,
    is_small,
    packed,
    packed_file,
)
from repl_env.common.binary_json import UPLOAD
from repl_env.common.json_values import json_text
from repl_env.episode.call_options import ResetOptions
from repl_env.episode.contexts import NAME
from repl_env.errors import NotSupported
from repl_env.llm.endpoints.endpoint_errors import SecretTexts
from repl_env.llm.model_spec import LLM, check_forms

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


def _data(options: ResetOptions, native: bool) -> tuple[dict[str, Any], list[UploadBody]]:
    upload_from = LARGE if native else NEVER_LARGE
    contexts = {NAME: options.context, **(options.contexts or {})}
    packed_values = {
        name: packed(name, context, upload_from=upload_from)
        for name, context in contexts.items()
        if context is not None
    }
    bodies = [each for each in packed_values.values() if isinstance(each, UploadBody)]
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
    bodies = {each.sha256: each for each in packed_values.values() if isinstance(each, UploadBody)}
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
