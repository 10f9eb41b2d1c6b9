"""The controller of sub-calls, at the module path of OpenEnv's `repl_env.recursive_controller`."""

from repl_env.rlm.openenv_compat.subcall_controller import (
    RecursiveController,
    create_server_recursive_controller,
)

__all__ = [
    "RecursiveController",
    "create_server_recursive_controller",
]
