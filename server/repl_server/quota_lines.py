"""A `Quota`, said in lines as `sessions=8`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from .settings import ADDRESS_QUOTA, Quota


def quota_of(lines: Sequence[str], *, strangers: bool) -> Quota | None:
    """The quota of these lines, None for none.

    What is not named stays as it is without any: for strangers, limited.

    Raises:
        ValueError: naming the line.
    """
    if not lines:
        return None
    counted = _counted(_named(lines))
    try:
        return replace(ADDRESS_QUOTA if strangers else Quota(), **counted)
    except ValueError as error:
        raise ValueError(f"--quota: {error}") from None


def _named(lines: Sequence[str]) -> dict[str, str]:
    if wrong := [each for each in lines if not each.partition("=")[2]]:
        raise ValueError(f"--quota: {wrong[0]!r} is not NAME=VALUE, as sessions=8")
    return dict(each.partition("=")[::2] for each in lines)


def _counted(named: Mapping[str, str]) -> dict[str, Any]:
    kinds = {field.name: int if "int" in str(field.type) else float for field in fields(Quota)}
    if unknown := named.keys() - kinds.keys():
        raise ValueError(f"--quota: {min(unknown)!r} is none of {', '.join(kinds)}")
    counted: dict[str, Any] = {}
    for name, text in named.items():
        try:
            counted[name] = kinds[name](text)
        except ValueError:
            whole = "a whole number" if kinds[name] is int else "a number"
            raise ValueError(f"--quota {name} must be {whole}, not {text!r}") from None
    return counted
