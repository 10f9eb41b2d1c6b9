"""Backends of sub-calls, at the module path of OpenEnv's `repl_env.recursive_backends`."""

from repl_env.rlm.openenv_compat.lm_backends import (
    BackendLimits,
    ChatFn,
    DirectLMBackend,
    LocalChildRLMBackend,
    RecursiveBackend,
)
from repl_env.rlm.run_result import ChildTrace

__all__ = [
    "BackendLimits",
    "ChatFn",
    "ChildTrace",
    "DirectLMBackend",
    "LocalChildRLMBackend",
    "RecursiveBackend",
]
