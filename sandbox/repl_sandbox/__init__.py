"""The engine: warm templates, jailed sessions, outcomes.

Names resolve when they are first used (PEP 562): the worker imports this package too, inside the
jail, and must load nothing of the host's side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_sandbox import AsyncSandbox
    from .doctor import Facility, probe
    from .errors import (
        CheckpointError,
        HostCallError,
        IsolationError,
        PolicyError,
        ProtocolError,
        SandboxClosed,
        SandboxError,
        SessionBusy,
        SessionClosed,
        SessionDamaged,
    )
    from .host.container import ContainerLimits
    from .protocol.checkpoints import CheckpointInfo, Manifest, read_manifest
    from .sandbox import Sandbox
    from .session.asyncio_ import AsyncSession
    from .session.blocking import Session
    from .session.host_functions import HostFunction
    from .types import (
        Answer,
        Change,
        Display,
        ErrorInfo,
        Figure,
        File,
        Finished,
        Isolation,
        Killed,
        Layer,
        Limits,
        Listing,
        Missing,
        Outcome,
        Policy,
        Raised,
        Statistics,
        TimedOut,
        Usage,
        Variable,
        VariableList,
    )

    __version__: str

_HOME = {
    "Sandbox": "sandbox",
    "AsyncSandbox": "async_sandbox",
    "Session": "session.blocking",
    "AsyncSession": "session.asyncio_",
    "HostFunction": "session.host_functions",
    "ContainerLimits": "host.container",
    **dict.fromkeys(("Facility", "probe"), "doctor"),
    **dict.fromkeys(("Manifest", "CheckpointInfo", "read_manifest"), "protocol.checkpoints"),
    **dict.fromkeys(
        (
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
        ),
        "errors",
    ),
    **dict.fromkeys(
        (
            "Answer",
            "Change",
            "Display",
            "ErrorInfo",
            "File",
            "Figure",
            "Finished",
            "Isolation",
            "Killed",
            "Layer",
            "Limits",
            "Listing",
            "Missing",
            "Outcome",
            "Policy",
            "Raised",
            "Statistics",
            "TimedOut",
            "Usage",
            "Variable",
            "VariableList",
        ),
        "types",
    ),
}

__all__ = [
    "Answer",
    "AsyncSandbox",
    "AsyncSession",
    "Change",
    "CheckpointError",
    "CheckpointInfo",
    "ContainerLimits",
    "Display",
    "ErrorInfo",
    "Facility",
    "Figure",
    "File",
    "Finished",
    "HostCallError",
    "HostFunction",
    "Isolation",
    "IsolationError",
    "Killed",
    "Layer",
    "Limits",
    "Listing",
    "Manifest",
    "Missing",
    "Outcome",
    "Policy",
    "PolicyError",
    "ProtocolError",
    "Raised",
    "Sandbox",
    "SandboxClosed",
    "SandboxError",
    "Session",
    "SessionBusy",
    "SessionClosed",
    "SessionDamaged",
    "Statistics",
    "TimedOut",
    "Usage",
    "Variable",
    "VariableList",
    "probe",
    "read_manifest",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _version() -> str:
    """The version of the installed distribution; "unknown" in a bare source tree."""
    from importlib import metadata

    for name in ("repl-env", "openenv-repl-env"):  # the second: the same, as AutoEnv finds it
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"
