"""`Tenant`: whom sessions, contexts and quotas belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tenant:
    """A key by its name or, where keys are not asked for, the address that a request came from."""

    kind: Literal["key", "address"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def tenant_of(scope: Mapping[str, Any]) -> Tenant:
    """Whose an ASGI request is: as the guard found, or where there is none, its address."""
    owner: Tenant | None = scope.get("state", {}).get("owner")
    if owner is not None:
        return owner
    client = scope.get("client")
    return Tenant("address", client[0] if client else "")
