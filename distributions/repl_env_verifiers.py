"""The plugin of verifiers with the id `repl-env-verifiers`: a top-level module of the wheel.

verifiers finds plugins by the names of top-level modules alone. A taskset's own package exports the
same names, with its taskset in place of `REPLTaskset`.
"""

from repl_env.integrations.verifiers import REPLHarness, REPLTaskEnv, REPLTaskset

__all__ = ["REPLHarness", "REPLTaskEnv", "REPLTaskset"]
