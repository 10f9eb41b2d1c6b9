"""Errors of the engine, sorted by who must act.

    SandboxError
    ├── IsolationError      the operator: this system lacks a protection that was asked for
    ├── SandboxClosed       the caller: the sandbox is closed, or was ended
    ├── SessionClosed       the caller: the session is closed
    ├── SessionBusy         the caller: two calls at once on one session
    ├── SessionDamaged      nobody: code of the session has stopped or ended what a call needs
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

from .display import set_module

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
    "SessionDamaged",
]


@set_module("repl_sandbox")
class SandboxError(Exception):
    """The engine could not do what the caller requested."""


@set_module("repl_sandbox")
class IsolationError(SandboxError):
    """A layer of isolation could not be set up; the engine did not use a weaker one instead.

    `tier` is the requested tier, `step` the step of the recipe that failed, and `remedy` what the
    operator can change, empty if no remedy is known.
    """

    def __init__(self, tier: str, step: str, message: str, remedy: str = "") -> None:
        self.tier = tier
        self.step = step
        self.message = message
        self.remedy = remedy
        text = f"{tier}: {step}: {message}"
        super().__init__(f"{text}. {remedy}" if remedy else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # As for HostCallError: a process pool would wait for ever for an exception that it cannot
        # unpickle.
        return IsolationError, (self.tier, self.step, self.message, self.remedy), vars(self)


@set_module("repl_sandbox")
class SandboxClosed(SandboxError):
    """The sandbox is closed, its template has ended, or it belongs to another process."""


@set_module("repl_sandbox")
class SessionClosed(SandboxError):
    """The session is closed, by itself or with its sandbox, or belongs to another process."""


@set_module("repl_sandbox")
class SessionBusy(SandboxError):
    """The session is running another call; one caller at a time."""


@set_module("repl_sandbox")
class SessionDamaged(SandboxError):
    """Code of the session has stopped or ended the process that a call needs; the host is well."""


@set_module("repl_sandbox")
class CheckpointError(SandboxError):
    """A checkpoint could not be made, is damaged, or does not load; the message says which and
    why.
    """


@set_module("repl_sandbox")
class ProtocolError(SandboxError):
    """A rule of docs/protocol.md was broken."""


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol: a bug in this package."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; its further messages are ignored."""


@set_module("repl_sandbox")
class HostCallError(Exception):
    """Raised inside a cell when a host function failed.

    A built-in exception class of the host is a base class of the exception, so that `except
    ValueError` catches it; its text is then the message alone.

    `type` is the name of the exception's class on the host and `message` its text. Neither carries
    anything else of the host.
    """

    def __init__(self, type: str, message: str) -> None:
        self.type = type
        self.message = message
        super().__init__(f"{type}: {message}" if message else type)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies are made from the constructor's arguments, not from the text.
        return HostCallError, (self.type, self.message)


class PolicyError(Exception):
    """Raised for code that the session's language policy forbids.

    `line` and `column` (from 1) give the place in the cell, if it was found before the cell ran;
    for what was found while the cell ran they are None, and the traceback has the place.
    """

    # Shown to models and people without a module, as Python's own exceptions are.
    __module__ = "builtins"

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        super().__init__(message if line is None else f"line {line}, column {column}: {message}")
