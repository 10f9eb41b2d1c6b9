"""Messages of the Model Context Protocol, and their error codes. No I/O.

As in OpenEnv, a request may lack an id and still gets a response, and may name a session in its
parameters.
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

# Reserved by JSON-RPC for errors of servers; OpenEnv uses the same code.
SERVER_ERROR = -32000

# JSON-RPC codes by error code. Others are SERVER_ERROR; `data` has the error code.
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
    """A request. `version`: of the protocol; None if unknown."""

    method: str
    params: dict[str, Any]
    id: RequestId | None = None
    version: str | None = None

    @property
    def named_session(self) -> str | None:
        """The session in the parameters, as OpenEnv's clients name it.

        Raises:
            BadMessage: `session_id` is not a string.
        """
        token = self.params.get("session_id")
        if token is not None and not isinstance(token, str):
            raise BadMessage(INVALID_PARAMS, "session_id must be a string", self.id)
        return token or None

    @property
    def needed_session(self) -> str:
        """The session in the parameters; raises BadMessage without one."""
        token = self.named_session
        if token is None:
            raise BadMessage(INVALID_PARAMS, "session_id is needed", self.id)
        return token


@dataclass(frozen=True, slots=True)
class RPCNotification:
    """A notification. `cancels`: the id of the request that it cancels."""

    cancels: RequestId | None = None


Message: TypeAlias = RPCRequest | RPCNotification


def read(given: str | bytes | dict[str, Any]) -> Message:
    """Parse a text, or a value parsed from JSON; raises BadMessage."""
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
    """The JSON-RPC code for an error."""
    return _CODES.get(refusal.code, SERVER_ERROR)
