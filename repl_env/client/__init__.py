"""The client of a server, at OpenEnv's module path too. Names load at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.client.client import ReplAction, REPLEnv, ReplEnv, ReplObservation
    from repl_env.client.sync_client import SyncREPLEnv


__all__ = [
    "REPLEnv",
    "ReplAction",
    "ReplEnv",
    "ReplObservation",
    "SyncREPLEnv",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "repl_env.client.client": (
            "REPLEnv",
            "ReplAction",
            "ReplEnv",
            "ReplObservation",
        ),
        "repl_env.client.sync_client": ("SyncREPLEnv",),
    },
)
