"""SkyRL: episodes as an environment of skyrl-gym.

Needs `pip install 'repl-env[skyrl]'`. SkyRL makes environments by the name that one registers:
```python
skyrl_gym.register("repl-env", "repl_env.integrations.skyrl_gym:REPLTextEnv")
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.skyrl_gym.text_env import REPLTextEnv

__all__ = ["REPLTextEnv"]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    {"repl_env.integrations.skyrl_gym.text_env": ["REPLTextEnv"]},
    "skyrl-gym: pip install 'repl-env[skyrl]'",
    ("skyrl_gym",),
)
