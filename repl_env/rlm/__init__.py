"""Recursive language models: a model that works in a REPL and calls models on parts of its task.

Names are loaded when they are first used, so that each model's library is loaded only by who uses
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.rlm.asking import ask
    from repl_env.rlm.budget import Budget, Price, Spent
    from repl_env.rlm.conversation import Conversation
    from repl_env.rlm.endpoints import model_of
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
    from repl_env.rlm.gate import REQUESTS, Gate
    from repl_env.rlm.hf_model import HFModel
    from repl_env.rlm.ledger import Account, Ledger, Left, Reservation, Tally
    from repl_env.rlm.manner import Manner
    from repl_env.rlm.model import (
        ChatModel,
        Completion,
        ModelRequest,
        ModelUsage,
        TokenTrace,
        as_model,
    )
    from repl_env.rlm.openai_model import OpenAIModel
    from repl_env.rlm.replaying import ReplayModel
    from repl_env.rlm.rerunning import differences, rerun
    from repl_env.rlm.result import ChildTrace, RLMRunResult
    from repl_env.rlm.runner import RLM
    from repl_env.rlm.samples import Sample, sample
    from repl_env.rlm.scripted import ScriptedModel
    from repl_env.rlm.trajectory import Trajectory, TrajectoryWriter
    from repl_env.rlm.transformers_model import TransformersModel

__all__ = [
    "REQUESTS",
    "RLM",
    "Account",
    "Budget",
    "CallEnded",
    "CallStarted",
    "CellRan",
    "CellStarted",
    "ChatModel",
    "ChildTrace",
    "Completion",
    "Conversation",
    "Gate",
    "HFModel",
    "Ledger",
    "Left",
    "Manner",
    "ModelReplied",
    "ModelRequest",
    "ModelUsage",
    "OpenAIModel",
    "Price",
    "RLMRunResult",
    "ReplayModel",
    "Reservation",
    "RunEnded",
    "RunStarted",
    "Sample",
    "ScriptedModel",
    "Spent",
    "Tally",
    "TaskNote",
    "TokenTrace",
    "Trajectory",
    "TrajectoryWriter",
    "TransformersModel",
    "as_model",
    "ask",
    "differences",
    "model_of",
    "rerun",
    "sample",
]

_NAMES_BY_MODULE = {
    "asking": ("ask",),
    "budget": (
        "Budget",
        "Price",
        "Spent",
    ),
    "conversation": ("Conversation",),
    "endpoints": ("model_of",),
    "events": (
        "CallEnded",
        "CallStarted",
        "CellRan",
        "CellStarted",
        "ModelReplied",
        "RunEnded",
        "RunStarted",
        "TaskNote",
    ),
    "gate": (
        "REQUESTS",
        "Gate",
    ),
    "hf_model": ("HFModel",),
    "ledger": (
        "Account",
        "Ledger",
        "Left",
        "Reservation",
        "Tally",
    ),
    "manner": ("Manner",),
    "model": (
        "ChatModel",
        "Completion",
        "ModelRequest",
        "ModelUsage",
        "TokenTrace",
        "as_model",
    ),
    "openai_model": ("OpenAIModel",),
    "replaying": ("ReplayModel",),
    "rerunning": ("differences", "rerun"),
    "result": (
        "ChildTrace",
        "RLMRunResult",
    ),
    "runner": ("RLM",),
    "samples": (
        "Sample",
        "sample",
    ),
    "scripted": ("ScriptedModel",),
    "trajectory": (
        "Trajectory",
        "TrajectoryWriter",
    ),
    "transformers_model": ("TransformersModel",),
}

__getattr__, __dir__ = on_first_use(__name__, _NAMES_BY_MODULE)
