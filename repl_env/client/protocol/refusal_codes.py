"""The refusal codes of docs/endpoint.md, in one table.

The server sends them, the client raises an error for each (`repl_env.errors`).
"""

from __future__ import annotations

from dataclasses import dataclass

SUBPROTOCOL = "repl-env.v1"

# Close codes of a WebSocket (RFC 6455, section 7.4) that concern no request.
TAKEN_OVER = 4001
IDLE = 4408
OVER_QUOTA = 4429
DOES_NOT_READ = 1008
TRY_AGAIN = 1013


@dataclass(frozen=True, slots=True)
class RefusalCode:
    """The transport of a refusal: the HTTP status, and the close code if it ends a socket."""

    status: int
    close: int | None = None


CODES = {
    "INVALID_JSON": RefusalCode(400),
    "UNKNOWN_TYPE": RefusalCode(400),
    "UNKNOWN_PATH": RefusalCode(404),
    "WRONG_METHOD": RefusalCode(405),
    "VALIDATION_ERROR": RefusalCode(422),
    "NOT_RESET": RefusalCode(409),
    "EPISODE_DONE": RefusalCode(409),
    "EXECUTION_ERROR": RefusalCode(409),
    "EPISODE_ABORTED": RefusalCode(409),
    "UNAUTHENTICATED": RefusalCode(401, 4401),
    "FORBIDDEN": RefusalCode(403, 4403),
    "UNKNOWN_SESSION": RefusalCode(404, 4404),
    "UNKNOWN_CONTEXT": RefusalCode(404),
    "NO_FILE": RefusalCode(404),
    "FILE_ERROR": RefusalCode(409),
    "BAD_RANGE": RefusalCode(416),
    "OUT_OF_ORDER": RefusalCode(409),
    "TOO_LARGE": RefusalCode(413),
    "TOO_SLOW": RefusalCode(408, 1008),
    "RATE_LIMITED": RefusalCode(429),
    "QUOTA_EXCEEDED": RefusalCode(429),
    "CAPACITY_REACHED": RefusalCode(503, 1000),
    "NO_ROOM": RefusalCode(507),
    "DRAINING": RefusalCode(503, 1012),
    "SESSION_ERROR": RefusalCode(500, 1011),
    "FACTORY_ERROR": RefusalCode(503, 1011),
}
