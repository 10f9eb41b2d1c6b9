"""A context that is shared by a template, and the outputs of a group."""

from __future__ import annotations

from typing import Any

LARGE = "a line\n" * 200_000


def shown(results: list[Any]) -> list[str | None]:
    return [each and each.observation.result.stdout.strip() for each in results]
