"""NeMo Gym: episodes behind one of its resources servers.

Needs NeMo Gym, which is run from its repository. It is not tested with NeMo Gym itself, but by the
documented signatures of `GymnasiumServer`. NeMo Gym's server of OpenEnv environments takes ours
without this: `env_class: repl_env.REPLEnvironment`, `action_class: repl_env.REPLAction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repl_env import AsyncLocalREPLEnv, EpisodeAborted
from repl_env.env.rows import action_of_reply, escaped, message_of
from repl_env.integrations import needing, request_of_row

with needing("NeMo Gym, from its repository", "resources_servers", "nemo_gym"):
    from resources_servers.base_gymnasium import GymnasiumServer
    from resources_servers.base_gymnasium.base import extract_text

__all__ = ["REPLGymnasiumServer"]


class REPLGymnasiumServer(GymnasiumServer):
    """Runs the code blocks of each response in the session of its rollout.

    `verifier_metadata` of a row has the arguments of its session's reset, as `context` and
    `expected_answer`. The `app.py` of a server is
    ```python
    from repl_env.integrations.nemo_gym import REPLGymnasiumServer

    if __name__ == "__main__":
        REPLGymnasiumServer.run_webserver()
    ```
    """

    async def reset(
        self, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, dict[str, Any]]:
        """Begin the episode of a rollout; the input of the row stays as it is."""
        await self.close_session(session_id)
        env = AsyncLocalREPLEnv()
        row: Mapping[str, Any] = metadata.get("verifier_metadata") or metadata
        result = await env.reset(**request_of_row(row))
        self.session_state[session_id] = (env, result.observation.available_variables)
        return None, {}

    async def step(
        self, action: Any, metadata: dict[str, Any], session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        """Run the code of a response."""
        env, known = self.session_state[session_id]
        parsed_action = action_of_reply(extract_text(action), known)
        try:
            result = await env.step(parsed_action)
        except EpisodeAborted as error:
            return None, 0.0, False, True, {"mask": True, "error": str(error)}
        self.session_state[session_id] = (env, result.observation.available_variables)
        message_text = escaped(message_of(result.observation, parsed_action.metadata.get("note")))
        info = {"mask": bool((result.metadata or {}).get("mask"))}
        observation = None if result.done else message_text
        return observation, result.reward or 0.0, result.terminated, result.truncated, info

    async def close_session(self, session_id: str | None) -> None:
        """End the session of a rollout."""
        entry = self.session_state.pop(session_id, None)
        if entry is not None:
            await entry[0].close()
