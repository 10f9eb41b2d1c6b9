"""`Timeouts`: the time limits of a client, and the pauses between attempts to reach a server."""

from __future__ import annotations

import random
from dataclasses import dataclass

from repl_env.common.argument_checks import above_zero

_MIB = 1 << 20
# The first attempt is immediate, then pauses double; a random part keeps the clients of one server
# from returning all at once.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds, and in bytes per message.

    `message_s` None means no limit, `ping_s` None no pings.
    """

    connect_s: float = 10.0
    message_s: float | None = None
    ping_s: float | None = 20.0
    message_bytes: int = 100 * _MIB

    @classmethod
    def of(
        cls,
        *,
        connect_timeout_s: float,
        message_timeout_s: float | None,
        max_message_size_mb: float,
        ping_s: float | None,
    ) -> Timeouts:
        """Return the time limits for a client's arguments.

        TypeError or ValueError naming the argument.
        """
        return cls(
            connect_s=above_zero(connect_timeout_s, "connect_timeout_s"),
            message_s=optional_seconds(message_timeout_s, "message_timeout_s"),
            ping_s=optional_seconds(ping_s, "ping_s"),
            message_bytes=int(above_zero(max_message_size_mb, "max_message_size_mb") * _MIB),
        )


def pause(attempt: int) -> float:
    """Return the seconds before an attempt to reach the server; none before number 0."""
    if attempt <= 0:
        return 0.0
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 10))
    return longest * random.uniform(0.5, 1.0)


def optional_seconds(value: float | None, name: str) -> float | None:
    """Return `value` as seconds, or None; TypeError or ValueError naming the argument."""
    return None if value is None else above_zero(value, name)
