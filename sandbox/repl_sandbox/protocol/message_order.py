"""Allowed order of messages, as one table that is the same for both sides."""

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
    """Phase of a connection. Integers, because their hash runs no Python code."""

    BOOTING = enum.auto()
    IDLE = enum.auto()
    RUNNING = enum.auto()
    ASKING = enum.auto()


# A thread of the session may call the host just as the cell ends. A call, and the reply that
# refuses it, are therefore legal in every phase after boot.
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
