"""Recursive language models: a model that works in a REPL and calls models on parts of its task.

Names load at first use, so that only a model's users import its library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.llm.base import (
        ChatModel,
        Completion,
        ModelRequest,
        ModelUsage,
        TokenTrace,
        as_model,
    )
    from repl_env.llm.endpoints.hf_model import HFModel
    from repl_env.llm.endpoints.openai_model import OpenAIModel
    from repl_env.llm.local_models.transformers_model import TransformersModel
    from repl_env.llm.model_factory import model_of
    from repl_env.llm.request_gate import REQUESTS, RequestGate
    from repl_env.llm.scripted_model import ScriptedModel
    from repl_env.rlm.budget.budget_limits import Budget, Price, Spent
    from repl_env.rlm.budget.ledger import (
        BudgetLeft,
        Ledger,
        LedgerAccount,
        Reservation,
        UsageTally,
    )
    from repl_env.rlm.conversation import RunConversation
    from repl_env.rlm.events import (
        CallEnded,
        CallStarted,
        CellRan,
        CellStarted,
        ModelReplied,
        RunEnded,
        RunStarted,
        TaskNote,
    )
    from repl_env.rlm.model_call import call_model
    from repl_env.rlm.rlm_runner import RLM
    from repl_env.rlm.run_config import RunConfig
    from repl_env.rlm.run_result import ChildTrace, RLMRunResult
    from repl_env.rlm.trajectory.replay_model import ReplayModel
    from repl_env.rlm.trajectory.training_samples import TrainingSample, sample
    from repl_env.rlm.trajectory.trajectory import Trajectory, TrajectoryWriter
    from repl_env.rlm.trajectory_rerun import differences, rerun

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
    "repl_env.rlm.model_call": ("call_model",),
    "repl_env.rlm.budget.budget_limits": (
        "Budget",
        "Price",
        "Spent",
    ),
    "repl_env.rlm.conversation": ("RunConversation",),
    "repl_env.llm.model_factory": ("model_of",),
    "repl_env.rlm.events": (
        "CallEnded",
        "CallStarted",
        "CellRan",
        "CellStarted",
        "ModelReplied",
        "RunEnded",
        "RunStarted",
        "TaskNote",
    ),
    "repl_env.llm.request_gate": (
        "REQUESTS",
        "RequestGate",
    ),
    "repl_env.llm.endpoints.hf_model": ("HFModel",),
    "repl_env.rlm.budget.ledger": (
        "LedgerAccount",
        "Ledger",
        "BudgetLeft",
        "Reservation",
        "UsageTally",
    ),
    "repl_env.rlm.run_config": ("RunConfig",),
    "repl_env.llm.base": (
        "ChatModel",
        "Completion",
        "ModelRequest",
        "ModelUsage",
        "TokenTrace",
        "as_model",
    ),
    "repl_env.llm.endpoints.openai_model": ("OpenAIModel",),
    "repl_env.rlm.trajectory.replay_model": ("ReplayModel",),
    "repl_env.rlm.trajectory_rerun": (
        "differences",
        "rerun",
    ),
    "repl_env.rlm.run_result": (
        "ChildTrace",
        "RLMRunResult",
    ),
    "repl_env.rlm.rlm_runner": ("RLM",),
    "repl_env.rlm.trajectory.training_samples": (
        "TrainingSample",
        "sample",
    ),
    "repl_env.llm.scripted_model": ("ScriptedModel",),
    "repl_env.rlm.trajectory.trajectory": (
        "Trajectory",
        "TrajectoryWriter",
    ),
    "repl_env.llm.local_models.transformers_model": ("TransformersModel",),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
