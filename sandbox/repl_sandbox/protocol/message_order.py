"""Which message may follow which, as one table. It does not know which side it is on."""

from __future__ import annotations

import enum

from .messages import (
    Answered,
    Assign,
    Configure,
    Execute,
    Failed,
    Fetch,
    HostCall,
    HostReply,
    ListVariables,
    Load,
    Ready,
    Restored,
    Result,
    Save,
    Value,
    Variables,
)


class ProtocolPhase(enum.IntEnum):
    """Where a conversation stands. Integers, whose hash is not a call of Python's."""

    BOOTING = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    ASKING = enum.auto()


# A thread of the session may call the host just as the cell ends, so a call, and the refusal that
# answers it, are legal in every phase after boot.
_CALLS = (HostCall, Answered, HostReply)

TRANSITIONS: dict[ProtocolPhase, dict[type, ProtocolPhase]] = {
    ProtocolPhase.BOOTING: {Ready: ProtocolPhase.IDLE},
    ProtocolPhase.IDLE: {
        Configure: ProtocolPhase.IDLE,
        Restored: ProtocolPhase.IDLE,
        Execute: ProtocolPhase.RUNNING,
        Save: ProtocolPhase.RUNNING,
        Load: ProtocolPhase.RUNNING,
        Assign: ProtocolPhase.ASKING,
        Fetch: ProtocolPhase.ASKING,
        ListVariables: ProtocolPhase.ASKING,
        **dict.fromkeys(_CALLS, ProtocolPhase.IDLE),
    },
    ProtocolPhase.RUNNING: {
        Result: ProtocolPhase.IDLE,
        **dict.fromkeys(_CALLS, ProtocolPhase.RUNNING),
    },
    ProtocolPhase.ASKING: {
        Value: ProtocolPhase.IDLE,
        Variables: ProtocolPhase.IDLE,
        Failed: ProtocolPhase.IDLE,
        **dict.fromkeys(_CALLS, ProtocolPhase.ASKING),
    },
}
