"""A Space with a server of repl-env; the client's names."""

from repl_env.client.client import ReplAction, REPLEnv, ReplEnv, ReplObservation

__all__ = ["REPLEnv", "ReplAction", "ReplEnv", "ReplObservation"]
