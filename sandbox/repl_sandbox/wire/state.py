"""Which message may follow which, as one table. It does not know which side it is on."""

from __future__ import annotations

import enum

from .messages import (
    Answered,
    Assign,
    Call,
    Configure,
    Execute,
    Failed,
    Fetch,
    ListVariables,
    Load,
    Ready,
    Reply,
    Restored,
    Result,
    Save,
    Value,
    Variables,
)


class Phase(enum.IntEnum):
    """Where a conversation stands. Integers, whose hash is not a call of Python's."""

    BOOTING = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    ASKING = enum.auto()


# A thread of the session may call the host just as the cell ends, so a call, and the refusal that
# answers it, are legal in every phase after boot.
_CALLS = (Call, Answered, Reply)

TRANSITIONS: dict[Phase, dict[type, Phase]] = {
    Phase.BOOTING: {Ready: Phase.IDLE},
    Phase.IDLE: {
        Configure: Phase.IDLE,
        Restored: Phase.IDLE,
        Execute: Phase.RUNNING,
        Save: Phase.RUNNING,
        Load: Phase.RUNNING,
        Assign: Phase.ASKING,
        Fetch: Phase.ASKING,
        ListVariables: Phase.ASKING,
        **dict.fromkeys(_CALLS, Phase.IDLE),
    },
    Phase.RUNNING: {Result: Phase.IDLE, **dict.fromkeys(_CALLS, Phase.RUNNING)},
    Phase.ASKING: {
        Value: Phase.IDLE,
        Variables: Phase.IDLE,
        Failed: Phase.IDLE,
        **dict.fromkeys(_CALLS, Phase.ASKING),
    },
}
