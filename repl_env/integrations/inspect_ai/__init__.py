"""Inspect: a provider of sandboxes whose commands run in a session.

Needs `pip install 'repl-env[inspect]'`. Inspect finds the provider by its entry point, as
`sandbox="repl-env"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.inspect_ai.inspect_sandbox import (
        REPLSandboxConfig,
        REPLSandboxEnvironment,
    )

__all__ = ["REPLSandboxConfig", "REPLSandboxEnvironment"]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    {
        "repl_env.integrations.inspect_ai.inspect_sandbox": [
            "REPLSandboxConfig",
            "REPLSandboxEnvironment",
        ]
    },
    "Inspect: pip install 'repl-env[inspect]'",
    ("inspect_ai",),
)
