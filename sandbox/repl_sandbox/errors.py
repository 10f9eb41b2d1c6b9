"""What can go wrong in the engine, sorted by who must act.

    SandboxError
    ├── IsolationError      the operator: this system lacks a protection that was asked for
    ├── SandboxClosed       the caller: the sandbox is closed, or was ended
    ├── SessionClosed       the caller: the session is closed
    ├── SessionBusy         the caller: two calls at once on one session
    ├── CheckpointError     the caller: a checkpoint cannot be made, read or restored
    └── ProtocolError
        ├── LocalProtocolError    us: a bug in this package
        └── RemoteProtocolError   nobody: the other side is hostile or broken; it is cut off

Code that raises inside a session is an `Outcome`, never one of these. Bad arguments are `TypeError`
and `ValueError`, and name the argument. `HostCallError` and `PolicyError` are raised inside cells
only.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CheckpointError",
    "HostCallError",
    "IsolationError",
    "PolicyError",
    "ProtocolError",
    "SandboxClosed",
    "SandboxError",
    "SessionBusy",
    "SessionClosed",
]


class SandboxError(Exception):
    """The engine could not do what was asked of it."""


class IsolationError(SandboxError):
    """A layer of isolation could not be set up; no weaker one was used in its place.

    `tier` is the tier that was asked for, `step` the step of the recipe that failed, and `remedy`
    says what the operator can change, or is empty where nothing is known to help.
    """

    def __init__(self, tier: str, step: str, message: str, remedy: str = "") -> None:
        self.tier = tier
        self.step = step
        self.message = message
        self.remedy = remedy
        text = f"{tier}: {step}: {message}"
        super().__init__(f"{text}. {remedy}" if remedy else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # As of a HostCallError; and a pool of processes waits for ever for what it cannot read.
        return IsolationError, (self.tier, self.step, self.message, self.remedy), vars(self)


class SandboxClosed(SandboxError):
    """The sandbox is closed, its template was ended, or it belongs to another process."""


class SessionClosed(SandboxError):
    """The session is closed, by itself or with its sandbox, or belongs to another process."""


class SessionBusy(SandboxError):
    """The session is running another call; one caller at a time."""


class CheckpointError(SandboxError):
    """A checkpoint could not be made, is damaged, or does not load; the text says which and why."""


class ProtocolError(SandboxError):
    """A rule of docs/protocol.md was broken."""


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol: a bug in this package."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; nothing it says can be used any more."""


class HostCallError(Exception):
    """Raised inside a cell when a function of the host failed.

    An exception of a built-in class on the host is raised as one of that class as well, so that
    `except ValueError` catches it; its text is then the message alone.

    `type` is the name of the exception's class on the host and `message` its text. Neither carries
    anything else of the host.
    """

    def __init__(self, type: str, message: str) -> None:
        self.type = type
        self.message = message
        super().__init__(f"{type}: {message}" if message else type)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy is made of what it was made of, and not of its text.
        return HostCallError, (self.type, self.message)


class PolicyError(Exception):
    """Raised in place of what the session's language policy refuses.

    `line` and `column` (from 1) say where in the cell, for what was found before any of it ran; for
    what was found while it ran they are None, and the traceback says it.
    """

    # Read by models and people, as the names of Python's own errors are.
    __module__ = "builtins"

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        super().__init__(message if line is None else f"line {line}, column {column}: {message}")
