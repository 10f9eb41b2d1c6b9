"""A persistent, jailed Python REPL as an environment for language models.

Names are loaded when they are first used, so that `import repl_env` is light and works where the
engine does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.async_local import AsyncLocalREPLEnv
    from repl_env.client import ReplAction, REPLEnv, ReplEnv, ReplObservation
    from repl_env.environment import REPLEnvironment
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
    from repl_env.llm import LLM
    from repl_env.local import LocalREPLEnv
    from repl_env.models import (
        CodeBlockResult,
        REPLAction,
        REPLObservation,
        REPLState,
        StepResult,
    )
    from repl_env.parsing import extract_code_blocks
    from repl_env.prompts import (
        RLM_SYSTEM_PROMPT,
        RLM_SYSTEM_PROMPT_QWEN,
        RLM_SYSTEM_PROMPT_SHORT,
        QueryMetadata,
        build_rlm_system_prompt,
        build_user_prompt,
        format_observations,
    )
    from repl_env.recorder import Recorder
    from repl_env.recordings import Difference, Recording, replay
    from repl_env.rubrics import (
        CodeExecutionRubric,
        CustomMetricRubric,
        ExactMatchRubric,
        FuzzyMatchRubric,
        REPLRubric,
        Rubric,
    )
    from repl_env.runner import LocalRLMRunner, RLMRunResult
    from repl_env.sync_client import SyncREPLEnv
    from repl_env.thoughts import without_thoughts
    from repl_env.vector import REPLVectorEnv
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
    "CodeBlockResult",
    "CodeExecutionRubric",
    "CustomMetricRubric",
    "Difference",
    "EpisodeAborted",
    "EpisodeDone",
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
    "async_local": ("AsyncLocalREPLEnv",),
    "client": ("REPLEnv", "ReplAction", "ReplEnv", "ReplObservation"),
    "environment": ("REPLEnvironment",),
    "errors": (
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
    "llm": ("LLM",),
    "local": ("LocalREPLEnv",),
    "models": ("CodeBlockResult", "REPLAction", "REPLObservation", "REPLState", "StepResult"),
    "parsing": ("extract_code_blocks",),
    "prompts": (
        "RLM_SYSTEM_PROMPT",
        "RLM_SYSTEM_PROMPT_QWEN",
        "RLM_SYSTEM_PROMPT_SHORT",
        "QueryMetadata",
        "build_rlm_system_prompt",
        "build_user_prompt",
        "format_observations",
    ),
    "recorder": ("Recorder",),
    "recordings": ("Difference", "Recording", "replay"),
    "runner": ("LocalRLMRunner", "RLMRunResult"),
    "rubrics": (
        "CodeExecutionRubric",
        "CustomMetricRubric",
        "ExactMatchRubric",
        "FuzzyMatchRubric",
        "REPLRubric",
        "Rubric",
    ),
    "sync_client": ("SyncREPLEnv",),
    "thoughts": ("without_thoughts",),
    "vector": ("REPLVectorEnv",),
}
# Arguments and errors of an environment. The engine is loaded with the first of them that is
# used, so that a client's system, which may have none, imports this package all the same.
_NAMES_OF_THE_ENGINE = (
    "AsyncSandbox", "IsolationError", "Limits", "Policy", "Sandbox", "SandboxError", "SessionBusy",
)  # fmt: skip
_load, _listed = on_first_use(
    __name__, _NAMES_BY_MODULE, elsewhere={"repl_sandbox": _NAMES_OF_THE_ENGINE}
)


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("repl_sandbox").__version__  # of the one distribution
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*_listed(), "__version__"})
