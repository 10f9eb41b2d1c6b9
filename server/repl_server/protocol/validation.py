"""Strict parsing of untrusted JSON: an object, finite numbers, valid Unicode, bounded depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from repl_env.common.json_values import explain_not_json

from .request_error import RequestError

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
