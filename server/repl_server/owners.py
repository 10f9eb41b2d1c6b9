"""`Owner`: whom sessions, contexts and quotas belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Owner:
    """A key by its name or, where keys are not asked for, the address that a request came from."""

    kind: Literal["key", "address"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
