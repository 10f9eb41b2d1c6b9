"""`Tenant`: whom sessions, contexts and quotas belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Tenant:
    """A key by its name or, where keys are not asked for, the address that a request came from."""

    kind: Literal["key", "address"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SessionIdentity(Protocol):
    """A session as logs and metrics name it."""

    id: str
    tenant: Tenant


def tenant_of(scope: Mapping[str, Any]) -> Tenant:
    """Whose an ASGI request is: as the guard found, or where there is none, its address."""
    tenant: Tenant | None = scope.get("state", {}).get("tenant")
    if tenant is not None:
        return tenant
    client = scope.get("client")
    return Tenant("address", client[0] if client else "")
