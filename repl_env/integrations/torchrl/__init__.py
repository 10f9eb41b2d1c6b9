"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`. A name loads TorchRL when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.chat import REPLChatEnv
    from repl_env.integrations.torchrl.dataset_chat import DatasetREPLChatEnv
    from repl_env.integrations.torchrl.tool_transform import REPLToolTransform

_MODULES = {
    "chat": ["REPLChatEnv"],
    "dataset_chat": ["DatasetREPLChatEnv"],
    "tool_transform": ["REPLToolTransform"],
}

__all__ = ["DatasetREPLChatEnv", "REPLChatEnv", "REPLToolTransform"]

_load, __dir__ = on_first_use(__name__, _MODULES)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "torchrl", "tensordict"):
            raise
        told = f"{name} needs TorchRL: pip install 'repl-env[torchrl]'"
        raise ModuleNotFoundError(told, name=error.name) from error
