"""The environment and its client on OpenEnv's own base classes (extra `openenv`).

The client needs no engine: `REPLEnvironment` loads it when it is first used. Nothing else of
repl-env needs OpenEnv; docs/openenv.md says what for this is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import field_serializer

from repl_env import models
from repl_env.common.lazy_imports import lazy_exports
from repl_env.integrations import needing
from repl_env.models import showing

with needing("OpenEnv: pip install 'repl-env[openenv]'", "openenv"):
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server import types

if TYPE_CHECKING:
    from repl_env.integrations.openenv import REPLEnvironment

__all__ = ["REPLAction", "REPLEnv", "REPLEnvironment", "REPLObservation", "REPLState"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"repl_env.integrations.openenv": ["REPLEnvironment"]}
)


class REPLAction(models.REPLAction, types.Action):
    """One step: code to run, or with `is_final` an answer to submit; see `repl_env.REPLAction`."""


class REPLObservation(models.REPLObservation, types.Observation):
    """Observation of the policy after a reset or a step; see `repl_env.REPLObservation`."""


class REPLState(models.REPLState, types.State):
    """An episode so far; see `repl_env.REPLState`. `context` is dumped as it goes over the wire."""

    # OpenEnv's server dumps a state into Python objects before it makes JSON of them, so the limit
    # of the wire must hold there too.
    @field_serializer("context")
    def _context_for_the_wire(self, context: str | None) -> str | None:
        return models.context_for_the_wire(context)


# OpenEnv's 60 seconds are less than a step with sub-calls may take. When they are over, its client
# drops the socket, and with it the session.
MESSAGE_TIMEOUT_S = 600.0


class REPLEnv(EnvClient[REPLAction, REPLObservation, REPLState]):
    """A client for a server of repl-env, or for OpenEnv's server of its own `repl_env`.

    It works as every client of OpenEnv does: awaited, by `with`, or by `.sync()`, and through
    `from_docker_image` and `from_env`. It speaks OpenEnv's frames; what docs/endpoint.md adds to
    them (`timeout_s`, streams, resuming, uploads) is `repl_env.REPLEnv`'s.

    Args:
        base_url, connect_timeout_s, message_timeout_s, more: as in OpenEnv's `EnvClient`. A key of
            the server's goes into `headers`: `{"Authorization": "Bearer KEY"}`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = MESSAGE_TIMEOUT_S,
        **more: Any,
    ) -> None:
        super().__init__(base_url, connect_timeout_s, message_timeout_s, **more)

    def execute(self, code: str) -> Any:
        """One step that runs `code`."""
        return self.step(REPLAction(code=code))

    def submit_final_answer(self, answer: Any) -> Any:
        """One step that ends the episode with `answer`."""
        return self.step(REPLAction(is_final=True, final_answer=answer))

    def get_variable(self, name: str) -> Any:
        """One step that prints the repr of a variable, or of a dotted path from one."""
        return self.execute(showing(name))

    def list_variables(self) -> Any:
        """The names in the session."""
        return self._dispatch(self._list_variables_async)

    async def _list_variables_async(self) -> list[str]:
        state = await self._state_async()
        return list(state.namespace_keys)

    def _step_payload(self, action: REPLAction) -> dict[str, Any]:
        return action.model_dump(mode="json")

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[REPLObservation]:
        reward, done = payload["reward"], payload["done"]
        fields = {**payload["observation"], "reward": reward, "done": done}
        observation = REPLObservation.model_validate(fields)
        return StepResult(observation, reward, done, observation.metadata)

    def _parse_state(self, payload: dict[str, Any]) -> REPLState:
        return REPLState.model_validate(payload)
