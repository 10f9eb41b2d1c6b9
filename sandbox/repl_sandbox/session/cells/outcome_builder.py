"""`outcome_of`: the outcome of a cell, from the worker's result and the host's observations."""

from __future__ import annotations

from ...protocol.messages import Result
from ...types import (
    Answer,
    AnyOutcome,
    Clock,
    Figure,
    Finished,
    Killed,
    KillReason,
    Raised,
    State,
    TimedOut,
    Usage,
)

# These count as the reason of a death even if the cell's time was over too: the kill that ends such
# a cell reads as a signal, and a limit that was passed meanwhile is the better explanation.
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
    """Return the outcome of a cell. `result`: the worker's, None if there is none.

    `expired`: the clock that expired, `died`: the reason of the worker's death, if any.
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
        tuple(map(Figure, result.figures)),
        answers,
        usage,
        state,
    )
    if expired is not None:
        return TimedOut(*shown, clock=expired)
    if result.error is not None:
        return Raised(*shown)
    return Finished(*shown)
