"""Request data from the arguments of a client's methods."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.client.connection.timeouts import optional_seconds
from repl_env.common.argument_checks import of_public_kind, one_timeout
from repl_env.common.binary_json import encoded
from repl_env.common.json_values import json_text
from repl_env.episode.answer_schemas.type_schema import type_adapter
from repl_env.episode.call_options import FollowUpOptions
from repl_env.models import REPLAction

if TYPE_CHECKING:
    pass


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
