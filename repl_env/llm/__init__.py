"""Models: their settings, endpoints and requests. Names load at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.llm.spec import LLM

__all__ = [
    "LLM",
]

__getattr__, __dir__ = lazy_exports(__name__, {"repl_env.llm.spec": ("LLM",)})
