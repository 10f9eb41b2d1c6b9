"""`LocalREPLEnv`, at the module path of OpenEnv's `repl_env.local`."""

from repl_env.env.local_env import LocalREPLEnv

__all__ = [
    "LocalREPLEnv",
]
