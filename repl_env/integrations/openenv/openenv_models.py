"""Actions, observations and states that are OpenEnv's kind and this project's at once."""

from __future__ import annotations

from openenv.core.env_server import types
from pydantic import field_serializer

from repl_env import models
from repl_env.common.display import set_module


@set_module("repl_env.openenv")
class REPLAction(models.REPLAction, types.Action):
    """One step: code to run, or with `is_final` an answer to submit; see `repl_env.REPLAction`."""


@set_module("repl_env.openenv")
class REPLObservation(models.REPLObservation, types.Observation):
    """Observation of the policy after a reset or a step; see `repl_env.REPLObservation`."""


@set_module("repl_env.openenv")
class REPLState(models.REPLState, types.State):
    """An episode so far; see `repl_env.REPLState`. `context` is dumped as it goes over the wire."""

    # OpenEnv's server dumps a state into Python objects before it makes JSON of them, so the limit
    # of the wire must hold there too.
    @field_serializer("context")
    def _context_for_the_wire(self, context: str | None) -> str | None:
        return models.context_for_the_wire(context)
