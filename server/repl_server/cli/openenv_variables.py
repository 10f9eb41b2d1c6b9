"""Defaults of episodes, from the environment variables of OpenEnv's server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from repl_env.env.options import EnvironmentOptions as EnvironmentSettings

_TEXTS = {"REPL_CONTEXT": "context", "REPL_TASK_PROMPT": "task_prompt"}
_COUNTS = {
    "REPL_MAX_ITERATIONS": "max_iterations",
    "REPL_MAX_OUTPUT_LENGTH": "max_output_length",
    "REPL_CONTEXT_PREVIEW_LENGTH": "context_preview_length",
    "REPL_RLM_MAX_DEPTH": "rlm_max_depth",
    "REPL_RLM_MAX_ITERATIONS": "rlm_max_iterations",
}


def episodes_of_variables(variables: Mapping[str, str] | None = None) -> EnvironmentSettings:
    """Environment options from `variables`, by default those of the process.

    An empty variable counts as unset.

    Raises:
        ValueError: naming the invalid variable.
    """
    found = os.environ if variables is None else variables
    given: dict[str, Any] = {
        field: found[name] for name, field in _TEXTS.items() if found.get(name)
    }
    for name, field in _COUNTS.items():
        if text := found.get(name):
            given[field] = _count(name, text)
            _check(name, **{field: given[field]})
    return EnvironmentSettings(**given)


def _count(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {text!r}") from None


def _check(name: str, **field: Any) -> None:
    try:
        EnvironmentSettings(**field)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
