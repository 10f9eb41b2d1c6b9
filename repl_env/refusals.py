"""What a server refuses with: the codes of docs/endpoint.md, in one table.

The server sends them, the client raises an error for each (`repl_env.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass

SUBPROTOCOL = "repl-env.v1"

# Close codes of a WebSocket (RFC 6455, section 7.4) that are about no request.
TAKEN_OVER = 4001
IDLE = 4408
OVER_QUOTA = 4429
DOES_NOT_READ = 1008
TRY_AGAIN = 1013


@dataclass(frozen=True, slots=True)
class Code:
    """How a refusal travels: the status in HTTP, and the close code if it ends a socket."""

    status: int
    close: int | None = None


CODES = {
    "INVALID_JSON": Code(400),
    "UNKNOWN_TYPE": Code(400),
    "UNKNOWN_PATH": Code(404),
    "WRONG_METHOD": Code(405),
    "VALIDATION_ERROR": Code(422),
    "NOT_RESET": Code(409),
    "EPISODE_DONE": Code(409),
    "EXECUTION_ERROR": Code(409),
    "EPISODE_ABORTED": Code(409),
    "UNAUTHENTICATED": Code(401, 4401),
    "FORBIDDEN": Code(403, 4403),
    "UNKNOWN_SESSION": Code(404, 4404),
    "UNKNOWN_CONTEXT": Code(404),
    "OUT_OF_ORDER": Code(409),
    "TOO_LARGE": Code(413),
    "TOO_SLOW": Code(408, 1008),
    "RATE_LIMITED": Code(429),
    "QUOTA_EXCEEDED": Code(429),
    "CAPACITY_REACHED": Code(503, 1000),
    "NO_ROOM": Code(507),
    "DRAINING": Code(503, 1012),
    "SESSION_ERROR": Code(500, 1011),
    "FACTORY_ERROR": Code(503, 1011),
}
