"""What a cell came to, put together: what the session said of it, and what the host saw."""

from __future__ import annotations

from ...protocol.messages import Result
from ...types import (
    Answer,
    AnyOutcome,
    Clock,
    Finished,
    Killed,
    KillReason,
    Raised,
    State,
    TimedOut,
    Usage,
)

# Of these a cell is said to have died, also when its time was over: the kill that ends it then
# reads as a signal, and a limit that was passed meanwhile has the better claim.
_OUTWEIGH_TIME = ("memory", "cpu", "protocol")


def outcome_of(
    result: Result | None,
    output: tuple[str, str],
    answers: tuple[Answer, ...],
    usage: Usage,
    state: State,
    *,
    expired: Clock | None,
    died: KillReason | None,
) -> AnyOutcome:
    """The outcome of a cell. `result`: what its worker said, None if that did not come.

    `expired`: the clock that ran out, `died`: why its worker is gone, if it is.
    """
    if result is None or died is not None:
        if expired is not None and died not in _OUTWEIGH_TIME:
            return TimedOut(*output, answers=answers, usage=usage, state=state, clock=expired)
        reason = died or "protocol"
        return Killed(*output, answers=answers, usage=usage, state=state, reason=reason)
    shown = (
        *output,
        result.value,
        result.error,
        result.changes,
        result.figures,
        answers,
        usage,
        state,
    )
    if expired is not None:
        return TimedOut(*shown, clock=expired)
    if result.error is not None:
        return Raised(*shown)
    return Finished(*shown)
