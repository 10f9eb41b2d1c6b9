"""Readers of the fields of a JSON object from a file.

A reader returns the value, or raises a ValueError that names the expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias

Read: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class StrictRecord:
    """Reads a JSON object into `kind`, each field by its own reader."""

    kind: Callable[..., Any]
    readers: Mapping[str, Read]

    def __call__(self, value: Any) -> Any:
        """Return the object; ValueError naming a wrong or missing field."""
        if not isinstance(value, dict):
            raise ValueError(f"an object was expected, not {type(value).__name__}")
        found = {}
        for name, reader in self.readers.items():
            if name in value:
                found[name] = _named(name, reader, value[name])
            elif name in self._required:
                raise ValueError(f"{name}: missing")
        return self.kind(**found)

    @property
    def _required(self) -> frozenset[str]:
        return _required(self.kind)


def _named(name: str, reader: Read, value: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def text(value: Any) -> str:
    """Return a text."""
    if isinstance(value, str):
        return value
    raise ValueError(f"text was expected, not {type(value).__name__}")


def count(value: Any) -> int:
    """Return a whole number from 0."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"a whole number from 0 was expected, not {value!r}")


def number(value: Any) -> float:
    """Return a number; those without a JSON form are texts in the file."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"a number was expected, not {value!r}")


def flag(value: Any) -> bool:
    """Return true or false."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"true or false was expected, not {value!r}")


def anything(value: Any) -> Any:
    """Return any JSON value."""
    return value


def maybe(reader: Read) -> Read:
    """Return a reader of the same values, or null."""
    return lambda value: None if value is None else reader(value)


def many(reader: Read) -> Read:
    """Return a reader of a list of such values."""

    def items(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"a list was expected, not {type(value).__name__}")
        return tuple(reader(item) for item in value)

    return items


def one_of(*allowed: str) -> Read:
    """Return a reader of one of these texts."""

    def choice(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise ValueError(f"one of {', '.join(allowed)} was expected, not {value!r}")

    return choice


def _required(kind: Any) -> frozenset[str]:
    """Return the fields without a default."""
    if kind not in _REQUIRED:
        _REQUIRED[kind] = frozenset(
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        )
    return _REQUIRED[kind]


_REQUIRED: dict[Any, frozenset[str]] = {}
