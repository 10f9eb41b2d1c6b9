"""`Tenant`: the key or address that sessions, contexts and quotas belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Tenant:
    """The name of an API key or, on a server without keys, the address of the client."""

    kind: Literal["key", "address"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SessionIdentity(Protocol):
    """A session as logs and metrics name it."""

    id: str
    tenant: Tenant


def tenant_of(scope: Mapping[str, Any]) -> Tenant:
    """The tenant of an ASGI request: set by the request guard, or else the client's address."""
    tenant: Tenant | None = scope.get("state", {}).get("tenant")
    if tenant is not None:
        return tenant
    client = scope.get("client")
    return Tenant("address", client[0] if client else "")
