"""A persistent, jailed Python REPL as an environment for language models.

Names load at first use, so that `import repl_env` is light and works without the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.client.client import ReplAction, REPLEnv, ReplEnv, ReplObservation
    from repl_env.client.sync_client import SyncREPLEnv
    from repl_env.env.environment import REPLEnvironment
    from repl_env.env.recordings import Difference, Recorder, Recording, replay
    from repl_env.env.rollouts import EpisodeSummary
    from repl_env.env.vector import REPLVectorEnv
    from repl_env.errors import (
        AuthenticationFailed,
        BadReply,
        BudgetExceeded,
        CapacityReached,
        EpisodeAborted,
        EpisodeDone,
        InvalidRequest,
        ModelError,
        NotReset,
        NotSupported,
        QuotaExceeded,
        REPLError,
        ReplyTimeout,
        ServerError,
        ServerUnavailable,
        SessionLost,
        TooLarge,
    )
    from repl_env.llm.spec import LLM
    from repl_env.local import AsyncLocalREPLEnv, LocalREPLEnv
    from repl_env.models import (
        CellDisplay,
        CodeBlockResult,
        REPLAction,
        REPLObservation,
        REPLState,
        StepResult,
    )
    from repl_env.parsing.blocks import extract_code_blocks, without_thoughts
    from repl_env.prompts import (
        RLM_SYSTEM_PROMPT,
        RLM_SYSTEM_PROMPT_QWEN,
        RLM_SYSTEM_PROMPT_SHORT,
        QueryMetadata,
        build_rlm_system_prompt,
        build_user_prompt,
        format_observations,
    )
    from repl_env.rlm.config import RLMRunResult
    from repl_env.rubrics import (
        CodeExecutionRubric,
        CustomMetricRubric,
        ExactMatchRubric,
        FuzzyMatchRubric,
        REPLRubric,
        Rubric,
    )
    from repl_env.runner import LocalRLMRunner
    from repl_sandbox import (
        AsyncSandbox,
        IsolationError,
        Limits,
        Policy,
        Sandbox,
        SandboxError,
        SessionBusy,
    )

    __version__: str

__all__ = [
    "LLM",
    "RLM_SYSTEM_PROMPT",
    "RLM_SYSTEM_PROMPT_QWEN",
    "RLM_SYSTEM_PROMPT_SHORT",
    "AsyncLocalREPLEnv",
    "AsyncSandbox",
    "AuthenticationFailed",
    "BadReply",
    "BudgetExceeded",
    "CapacityReached",
    "CellDisplay",
    "CodeBlockResult",
    "CodeExecutionRubric",
    "CustomMetricRubric",
    "Difference",
    "EpisodeAborted",
    "EpisodeDone",
    "EpisodeSummary",
    "ExactMatchRubric",
    "FuzzyMatchRubric",
    "InvalidRequest",
    "IsolationError",
    "Limits",
    "LocalREPLEnv",
    "LocalRLMRunner",
    "ModelError",
    "NotReset",
    "NotSupported",
    "Policy",
    "QueryMetadata",
    "QuotaExceeded",
    "REPLAction",
    "REPLEnv",
    "REPLEnvironment",
    "REPLError",
    "REPLObservation",
    "REPLRubric",
    "REPLState",
    "REPLVectorEnv",
    "RLMRunResult",
    "Recorder",
    "Recording",
    "ReplAction",
    "ReplEnv",
    "ReplObservation",
    "ReplyTimeout",
    "Rubric",
    "Sandbox",
    "SandboxError",
    "ServerError",
    "ServerUnavailable",
    "SessionBusy",
    "SessionLost",
    "StepResult",
    "SyncREPLEnv",
    "TooLarge",
    "build_rlm_system_prompt",
    "build_user_prompt",
    "extract_code_blocks",
    "format_observations",
    "replay",
    "without_thoughts",
]

_NAMES_BY_MODULE = {
    "repl_env.local": (
        "AsyncLocalREPLEnv",
        "LocalREPLEnv",
    ),
    "repl_env.client.client": (
        "REPLEnv",
        "ReplAction",
        "ReplEnv",
        "ReplObservation",
    ),
    "repl_env.env.environment": ("REPLEnvironment",),
    "repl_env.errors": (
        "AuthenticationFailed",
        "BadReply",
        "BudgetExceeded",
        "CapacityReached",
        "EpisodeAborted",
        "EpisodeDone",
        "InvalidRequest",
        "ModelError",
        "NotReset",
        "NotSupported",
        "QuotaExceeded",
        "REPLError",
        "ReplyTimeout",
        "ServerError",
        "ServerUnavailable",
        "SessionLost",
        "TooLarge",
    ),
    "repl_env.llm.spec": ("LLM",),
    "repl_env.models": (
        "CellDisplay",
        "CodeBlockResult",
        "REPLAction",
        "REPLObservation",
        "REPLState",
        "StepResult",
    ),
    "repl_env.parsing.blocks": (
        "extract_code_blocks",
        "without_thoughts",
    ),
    "repl_env.prompts": (
        "QueryMetadata",
        "RLM_SYSTEM_PROMPT",
        "RLM_SYSTEM_PROMPT_QWEN",
        "RLM_SYSTEM_PROMPT_SHORT",
        "build_rlm_system_prompt",
        "build_user_prompt",
        "format_observations",
    ),
    "repl_env.env.recordings": (
        "Difference",
        "Recorder",
        "Recording",
        "replay",
    ),
    "repl_env.rubrics": (
        "CodeExecutionRubric",
        "CustomMetricRubric",
        "ExactMatchRubric",
        "FuzzyMatchRubric",
        "REPLRubric",
        "Rubric",
    ),
    "repl_env.runner": (
        "LocalRLMRunner",
        "RLMRunResult",
    ),
    "repl_env.client.sync_client": ("SyncREPLEnv",),
    "repl_env.env.rollouts": ("EpisodeSummary",),
    "repl_env.env.vector": ("REPLVectorEnv",),
}
# Arguments and errors of an environment. The engine loads with the first of them, so that this
# package can be imported on a client's system without it.
_NAMES_OF_THE_ENGINE = (
    "AsyncSandbox", "IsolationError", "Limits", "Policy", "Sandbox", "SandboxError", "SessionBusy",
)  # fmt: skip
_load, _listed = lazy_exports(__name__, _NAMES_BY_MODULE | {"repl_sandbox": _NAMES_OF_THE_ENGINE})


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("repl_sandbox").__version__  # of the one distribution
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*_listed(), "__version__"})
