"""JSON from strangers, read strictly: an object, finite numbers, valid text, bounded depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from repl_env.common.json_values import explain_not_json

from .request_error import RequestError

# Of one validation error, at most.
_MOST_ERRORS = 20


def read_object(text: str | bytes) -> dict[str, Any]:
    """The object that `text` is.

    Raises:
        Refusal: INVALID_JSON.
    """
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        # The parser's words are about a place in the text; nothing of the text is in them.
        raise RequestError("INVALID_JSON", f"this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("INVALID_JSON", f"a JSON object is wanted, not {_KINDS[type(value)]}")
    # What is nested too deep, and numbers that JSON has no text for (1e999 is read so).
    if problem := explain_not_json(value):
        raise RequestError("INVALID_JSON", problem)
    return value


def validation_error_of(
    found: Sequence[Mapping[str, Any]], where: Sequence[str | int] = ()
) -> RequestError:
    """The refusal of a value, by the errors that pydantic found in it.

    Says which fields and why, and nothing of what was in them, which may be a secret.
    """
    errors = [
        {"type": each["type"], "loc": [*where, *each["loc"]], "msg": each["msg"]}
        for each in found[:_MOST_ERRORS]
    ]
    place = ".".join(str(part) for part in errors[0]["loc"]) or "data"
    return RequestError("VALIDATION_ERROR", f"{place}: {errors[0]['msg']}", errors=errors)


def validation_error(place: str, message: str, kind: str = "value_error") -> RequestError:
    """The refusal of one field."""
    errors = [{"type": kind, "loc": place.split("."), "msg": message}]
    return RequestError("VALIDATION_ERROR", f"{place}: {message}", errors=errors)


def validate(model: type[BaseModel], data: Any, where: Sequence[str | int] = ()) -> Any:
    """`data` as `model`; Refusal VALIDATION_ERROR if it is none."""
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
