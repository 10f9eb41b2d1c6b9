"""Requests of the Model Context Protocol as the server takes them, and their errors. No I/O.

Beside the protocol's own there are OpenEnv's: a request may have no id, and be answered, and name
its session among its parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
)

from repl_env.integrations.mcp.mcp_messages import BadMessage, message_of, parse

from ..protocol.request_error import RequestError

CREATE = "openenv/session/create"
CLOSE = "openenv/session/close"

# What JSON-RPC reserves for what is particular to a server; OpenEnv's code too.
SERVER_ERROR = -32000

# The codes of refusals that JSON-RPC has one for. The others are SERVER_ERROR; `data` says which.
_CODES = {
    "INVALID_JSON": PARSE_ERROR,
    "UNKNOWN_TYPE": METHOD_NOT_FOUND,
    "VALIDATION_ERROR": INVALID_PARAMS,
    "UNKNOWN_SESSION": INVALID_PARAMS,
    "EXECUTION_ERROR": INTERNAL_ERROR,
    "SESSION_ERROR": INTERNAL_ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RPCRequest:
    """A request. `version`: of the protocol, if its client said."""

    method: str
    params: dict[str, Any]
    id: RequestId | None = None
    version: str | None = None

    @property
    def named_session(self) -> str | None:
        """The session that it names, as OpenEnv's clients do.

        Raises:
            BadMessage: it is no text.
        """
        token = self.params.get("session_id")
        if token is not None and not isinstance(token, str):
            raise BadMessage(INVALID_PARAMS, "session_id must be a string", self.id)
        return token or None

    @property
    def needed_session(self) -> str:
        """The same; BadMessage if it names none."""
        token = self.named_session
        if token is None:
            raise BadMessage(INVALID_PARAMS, "session_id is needed", self.id)
        return token


@dataclass(frozen=True, slots=True)
class RPCNotification:
    """What needs no answer. `cancels`: the id of the request that it ends."""

    cancels: RequestId | None = None


Message: TypeAlias = RPCRequest | RPCNotification


def read(given: str | bytes | dict[str, Any]) -> Message:
    """The message that a text, or a value read from JSON, is; raises BadMessage."""
    message = message_of(given) if isinstance(given, dict) else parse(given)
    match message:
        case JSONRPCRequest(method=method, params=params, id=id):
            return RPCRequest(method=method, params=params or {}, id=id)
        case JSONRPCNotification(method="notifications/cancelled", params=params):
            named = (params or {}).get("requestId")
            return RPCNotification(named if isinstance(named, (str, int)) else None)
        case JSONRPCNotification(method=method, params=params):
            if not method.startswith("notifications/"):
                return RPCRequest(method=method, params=params or {})
    return RPCNotification()


def code_of(refusal: RequestError) -> int:
    """The code of JSON-RPC for a refusal."""
    return _CODES.get(refusal.code, SERVER_ERROR)
