"""The field order of an answer's schema, for values that are given without names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

# The field names of an object, in order; "array" for a list; None otherwise.
Shape: TypeAlias = "tuple[str, ...] | Literal['array'] | None"

_USAGE = "SUBMIT takes one value, or fields by name: SUBMIT(answer=...)"


@dataclass(frozen=True)
class AnswerSchema:
    """Validates answers, and knows their shape."""

    check: Callable[[JSON], JSON]
    json_schema: Callable[[], dict[str, Any]]

    def __call__(self, value: JSON) -> JSON:
        """Return the value to keep; ValueError if `value` does not fit."""
        return self.check(value)

    @cached_property
    def shape(self) -> Shape:
        """The order of the fields; None if the schema has none."""
        try:
            schema: Any = self.json_schema()
        # Boundary: a user's type may have no JSON schema; pydantic reports that in many ways.
        except Exception:  # noqa: BLE001
            return None
        schema = _referred(schema)
        if isinstance(schema.get("properties"), dict):
            return tuple(map(str, schema["properties"]))
        return "array" if schema.get("type") == "array" else None


def arranged(arguments: JSON, shape: Shape) -> JSON:
    """Return the single value of several SUBMIT arguments; ValueError if they do not fit."""
    match arguments:
        case {"values": list(values), "fields": dict(fields)}:
            pass
        case _:
            raise ValueError("an argument of SUBMIT is not JSON")
    if shape == "array" and not fields:
        return values
    if shape is None or shape == "array":
        raise ValueError(_USAGE)
    if len(values) > len(shape):
        names = ", ".join(shape)
        raise ValueError(f"SUBMIT takes at most {len(shape)} values here: {names}")
    values_by_field = dict(zip(shape, values, strict=False))
    for name in values_by_field:
        if name in fields:
            raise ValueError(f"SUBMIT got {name!r} twice")
    return {**values_by_field, **fields}


def _referred(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that the whole schema refers to, as in recursive models."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = (
        schema.get("$defs", {}).get(name) if isinstance(schema.get("$defs"), dict) else None
    )
    return definition if isinstance(definition, dict) else schema
