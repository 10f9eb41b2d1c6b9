"""The models of this environment, in OpenEnv's module; `pip install .` has theirs."""

from repl_env.models import REPLAction, REPLObservation, REPLState

__all__ = ["REPLAction", "REPLObservation", "REPLState"]
