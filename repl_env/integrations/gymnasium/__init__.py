"""Gymnasium: the REPL as an environment whose observations and actions are texts.

Needs `pip install 'repl-env[gymnasium]'`. Gymnasium 1.0 and later look for no plugins, so that the
import of this package registers `repl_env/REPL-v0`, as that of `ale_py` registers Atari's games:

```python
import gymnasium
import repl_env.integrations.gymnasium

env = gymnasium.make("repl_env/REPL-v0")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.integrations.gymnasium.gym_env import REPLGymEnv
    from repl_env.integrations.gymnasium.gym_vector_env import REPLGymVectorEnv
    from repl_env.integrations.gymnasium.unicode_text import UnicodeText

__all__ = ["ENV_ID", "REPLGymEnv", "REPLGymVectorEnv", "UnicodeText", "register_envs"]

ENV_ID = "repl_env/REPL-v0"

_MODULES = {
    "repl_env.integrations.gymnasium.gym_env": ["REPLGymEnv"],
    "repl_env.integrations.gymnasium.gym_vector_env": ["REPLGymVectorEnv"],
    "repl_env.integrations.gymnasium.unicode_text": ["UnicodeText"],
}


def register_envs() -> None:
    """Register `repl_env/REPL-v0`, unless it is registered: the entry point of `gymnasium.envs`.

    Raises:
        ModuleNotFoundError: Gymnasium is not installed.
    """
    try:
        from gymnasium.envs.registration import register, registry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "gymnasium":
            raise
        message = f"{ENV_ID} needs Gymnasium: pip install 'repl-env[gymnasium]'"
        raise ModuleNotFoundError(message, name=error.name) from error

    if ENV_ID not in registry:
        register(
            ENV_ID,
            entry_point=f"{__name__}.gym_env:REPLGymEnv",
            vector_entry_point=f"{__name__}.gym_vector_env:REPLGymVectorEnv",
            nondeterministic=True,  # code can read the clock
        )


register_envs()
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
