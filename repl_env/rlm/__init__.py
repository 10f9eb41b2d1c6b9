"""Recursive language models: a model that works in a REPL and calls models on parts of its task.

Names are loaded when they are first used, so that each model's library is loaded only by who uses
it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl_env.rlm.budget import Budget, Price, Spent
    from repl_env.rlm.model import (
        ChatModel,
        Completion,
        ModelRequest,
        ModelUsage,
        TokenTrace,
        as_model,
    )
    from repl_env.rlm.samples import Sample, sample
    from repl_env.rlm.scripted import ScriptedModel
    from repl_env.rlm.transformers_model import TransformersModel

__all__ = [
    "Budget",
    "ChatModel",
    "Completion",
    "ModelRequest",
    "ModelUsage",
    "Price",
    "Sample",
    "ScriptedModel",
    "Spent",
    "TokenTrace",
    "TransformersModel",
    "as_model",
    "sample",
]

_NAMES_BY_MODULE = {
    "budget": ("Budget", "Price", "Spent"),
    "model": ("ChatModel", "Completion", "ModelRequest", "ModelUsage", "TokenTrace", "as_model"),
    "samples": ("Sample", "sample"),
    "scripted": ("ScriptedModel",),
    "transformers_model": ("TransformersModel",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
