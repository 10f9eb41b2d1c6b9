"""Prompts of recursive runs, at the module path of OpenEnv's `repl_env.prompts`."""

from repl_env.parsing.code_blocks import extract_code_blocks
from repl_env.rlm.prompt_templates import (
    RLM_SYSTEM_PROMPT,
    RLM_SYSTEM_PROMPT_QWEN,
    RLM_SYSTEM_PROMPT_SHORT,
    QueryMetadata,
    build_rlm_system_prompt,
    build_user_prompt,
    format_observations,
)

__all__ = [
    "RLM_SYSTEM_PROMPT",
    "RLM_SYSTEM_PROMPT_QWEN",
    "RLM_SYSTEM_PROMPT_SHORT",
    "QueryMetadata",
    "build_rlm_system_prompt",
    "build_user_prompt",
    "extract_code_blocks",
    "format_observations",
]
