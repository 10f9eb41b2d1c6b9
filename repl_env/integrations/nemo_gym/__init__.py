"""NeMo Gym: episodes behind one of its resources servers.

Needs NeMo Gym, which is run from its repository. It is not tested with NeMo Gym itself, but by the
documented signatures of `GymnasiumServer`. NeMo Gym's server of OpenEnv environments takes ours
without this: `env_class: repl_env.REPLEnvironment`, `action_class: repl_env.REPLAction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.nemo_gym.gymnasium_server import REPLGymnasiumServer

__all__ = ["REPLGymnasiumServer"]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    {"repl_env.integrations.nemo_gym.gymnasium_server": ["REPLGymnasiumServer"]},
    "NeMo Gym, from its repository",
    ("resources_servers", "nemo_gym"),
)
