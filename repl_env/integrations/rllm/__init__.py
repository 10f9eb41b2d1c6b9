"""rLLM: episodes as an environment of its agent execution engine.

Needs rLLM, which is installed from its repository. It is not tested with rLLM itself, but by the
documented signatures of `BaseEnv`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.rllm.reply_env import REPLReplyEnv

__all__ = ["REPLReplyEnv"]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    {"repl_env.integrations.rllm.reply_env": ["REPLReplyEnv"]},
    "rLLM, from its repository",
    ("rllm",),
)
