"""TRL: an environment class, a rollout function, masked rewards and a template of fenced cells.

Needs `pip install 'repl-env[trl]'`. Only `REPLGRPOTrainer` imports TRL, when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.integrations.trl.fenced_calls import use_fences
    from repl_env.integrations.trl.reward_functions import episode_reward, masked_rewards
    from repl_env.integrations.trl.rollouts import Rollouts, rollout_func
    from repl_env.integrations.trl.tool_env import REPLToolEnv
    from repl_env.integrations.trl.trainer import REPLGRPOTrainer

_MODULES = {
    "repl_env.integrations.trl.fenced_calls": ["use_fences"],
    "repl_env.integrations.trl.reward_functions": ["episode_reward", "masked_rewards"],
    "repl_env.integrations.trl.rollouts": ["Rollouts", "rollout_func"],
    "repl_env.integrations.trl.tool_env": ["REPLToolEnv"],
    "repl_env.integrations.trl.trainer": ["REPLGRPOTrainer"],
}

__all__ = [
    "REPLGRPOTrainer",
    "REPLToolEnv",
    "Rollouts",
    "episode_reward",
    "masked_rewards",
    "rollout_func",
    "use_fences",
]

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
