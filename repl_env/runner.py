"""`LocalRLMRunner` and its result, at the module path of OpenEnv's `repl_env.runner`."""

from repl_env.rlm.openenv_compat.local_rlm_runner import LocalRLMRunner
from repl_env.rlm.run_result import RLMRunResult

__all__ = [
    "LocalRLMRunner",
    "RLMRunResult",
]
