"""A model's reply as code, answer and reasoning. Names load at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.parsing.blocks import FoundCode, extract_code_blocks, find_code, strip_fence

__all__ = [
    "FoundCode",
    "extract_code_blocks",
    "find_code",
    "strip_fence",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "repl_env.parsing.blocks": (
            "FoundCode",
            "extract_code_blocks",
            "find_code",
            "strip_fence",
        )
    },
)
