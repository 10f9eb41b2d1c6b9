"""Recursive language models: a model that works in a REPL and calls models on parts of its task.

Names are loaded when they are first used, so that each model's library is loaded only by who uses
it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl_env.rlm.budget import Budget, Price, Spent
    from repl_env.rlm.endpoints import model_of
    from repl_env.rlm.hf_model import HFModel
    from repl_env.rlm.model import (
        ChatModel,
        Completion,
        ModelRequest,
        ModelUsage,
        TokenTrace,
        as_model,
    )
    from repl_env.rlm.openai_model import OpenAIModel
    from repl_env.rlm.scripted import ScriptedModel

__all__ = [
    "Budget",
    "ChatModel",
    "Completion",
    "HFModel",
    "ModelRequest",
    "ModelUsage",
    "OpenAIModel",
    "Price",
    "ScriptedModel",
    "Spent",
    "TokenTrace",
    "as_model",
    "model_of",
]

_NAMES_BY_MODULE = {
    "budget": ("Budget", "Price", "Spent"),
    "endpoints": ("model_of",),
    "hf_model": ("HFModel",),
    "model": ("ChatModel", "Completion", "ModelRequest", "ModelUsage", "TokenTrace", "as_model"),
    "openai_model": ("OpenAIModel",),
    "scripted": ("ScriptedModel",),
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
