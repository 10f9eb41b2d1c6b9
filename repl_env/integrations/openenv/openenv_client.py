"""`REPLEnv` as a client of OpenEnv, for trainers that make or expect one."""

from __future__ import annotations

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from repl_env.common.display import set_module
from repl_env.integrations.openenv.openenv_models import REPLAction, REPLObservation, REPLState
from repl_env.models import showing

# OpenEnv's 60 seconds are less than a step with sub-calls may take. When they are over, its client
# drops the socket, and with it the session.
MESSAGE_TIMEOUT_S = 600.0


@set_module("repl_env.openenv")
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
