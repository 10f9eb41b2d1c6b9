"""Recursive language models: a model that works in a REPL and calls models on parts of its task.

Names load at first use, so that only a model's users import its library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.llm.base import (
        REQUESTS,
        ChatModel,
        Completion,
        ModelRequest,
        ModelUsage,
        RequestGate,
        TokenTrace,
        as_model,
    )
    from repl_env.llm.factory import model_of
    from repl_env.llm.hf import HFModel
    from repl_env.llm.openai import OpenAIModel
    from repl_env.llm.transformers import TransformersModel
    from repl_env.rlm.budget import Budget, Price, Spent
    from repl_env.rlm.config import ChildTrace, RLMRunResult, RunConfig
    from repl_env.rlm.conversation import RunConversation
    from repl_env.rlm.ledger import Ledger, LedgerAccount, Reservation
    from repl_env.rlm.model_call import (
        CallEnded,
        CallStarted,
        CellRan,
        CellStarted,
        ModelReplied,
        RunEnded,
        RunStarted,
        TaskNote,
        call_model,
    )
    from repl_env.rlm.replay import ReplayModel, ScriptedModel, differences, rerun
    from repl_env.rlm.runner import RLM
    from repl_env.rlm.samples import TrainingSample, sample
    from repl_env.rlm.trajectory import Trajectory
    from repl_env.rlm.trajectory_writer import TrajectoryWriter
    from repl_env.rlm.usage import BudgetLeft, UsageTally


__all__ = [
    "REQUESTS",
    "RLM",
    "Budget",
    "BudgetLeft",
    "CallEnded",
    "CallStarted",
    "CellRan",
    "CellStarted",
    "ChatModel",
    "ChildTrace",
    "Completion",
    "HFModel",
    "Ledger",
    "LedgerAccount",
    "ModelReplied",
    "ModelRequest",
    "ModelUsage",
    "OpenAIModel",
    "Price",
    "RLMRunResult",
    "ReplayModel",
    "RequestGate",
    "Reservation",
    "RunConfig",
    "RunConversation",
    "RunEnded",
    "RunStarted",
    "ScriptedModel",
    "Spent",
    "TaskNote",
    "TokenTrace",
    "TrainingSample",
    "Trajectory",
    "TrajectoryWriter",
    "TransformersModel",
    "UsageTally",
    "as_model",
    "call_model",
    "differences",
    "model_of",
    "rerun",
    "sample",
]

_NAMES_BY_MODULE = {
    "repl_env.rlm.model_call": (
        "CallEnded",
        "CallStarted",
        "CellRan",
        "CellStarted",
        "ModelReplied",
        "RunEnded",
        "RunStarted",
        "TaskNote",
        "call_model",
    ),
    "repl_env.rlm.budget": (
        "Budget",
        "Price",
        "Spent",
    ),
    "repl_env.rlm.conversation": ("RunConversation",),
    "repl_env.llm.factory": ("model_of",),
    "repl_env.llm.base": (
        "ChatModel",
        "Completion",
        "ModelRequest",
        "ModelUsage",
        "REQUESTS",
        "RequestGate",
        "TokenTrace",
        "as_model",
    ),
    "repl_env.llm.hf": ("HFModel",),
    "repl_env.rlm.ledger": (
        "BudgetLeft",
        "Ledger",
        "LedgerAccount",
        "Reservation",
        "UsageTally",
    ),
    "repl_env.rlm.config": (
        "ChildTrace",
        "RLMRunResult",
        "RunConfig",
    ),
    "repl_env.llm.openai": ("OpenAIModel",),
    "repl_env.rlm.replay": (
        "ReplayModel",
        "ScriptedModel",
        "differences",
        "rerun",
    ),
    "repl_env.rlm.runner": ("RLM",),
    "repl_env.rlm.samples": (
        "TrainingSample",
        "sample",
    ),
    "repl_env.rlm.trajectory": (
        "Trajectory",
        "TrajectoryWriter",
    ),
    "repl_env.llm.transformers": ("TransformersModel",),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
