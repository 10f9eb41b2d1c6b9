"""The names of this environment, as OpenEnv derives them; `pip install .` has their module."""

from repl_env.client.client import ReplAction, REPLEnv, ReplEnv, ReplObservation

__all__ = ["REPLEnv", "ReplAction", "ReplEnv", "ReplObservation"]
