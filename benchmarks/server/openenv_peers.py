"""OpenEnv's server with two environments, in an interpreter that has `openenv`.

    python -m benchmarks.server.openenv_peers echo|repl

"repl" stands for OpenEnv's own REPL environment, which no package has: the same executor, that of
smolagents, in an environment that does nothing but call it.
"""

from __future__ import annotations

import sys
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field
from smolagents.local_python_executor import LocalPythonExecutor

from .listening import serve

_SESSIONS = 1024


class Code(Action):  # type: ignore[misc]
    """What a step runs."""

    code: str


class Seen(Observation):  # type: ignore[misc]
    """What a step came to."""

    result: dict[str, Any] = Field(default_factory=dict)


class Echo(Environment):  # type: ignore[misc]
    """Says what it was told."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        return Seen()

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        return Seen(result={"stdout": action.code, "success": True}, reward=0.0)

    @property
    def state(self) -> State:
        return State()


class REPL(Echo):
    """Runs code in an interpreter of Python written in Python."""

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        self._executor = LocalPythonExecutor(additional_authorized_imports=[])
        self._executor.send_tools({})
        return Seen()

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        output = self._executor(action.code)
        known = {
            name: repr(value) for name, value in self._executor.state.items() if name[0] != "_"
        }
        shown = {"stdout": output.logs, "locals_snapshot": known, "success": True}
        return Seen(result=shown, reward=0.0)


if __name__ == "__main__":
    made = {"echo": Echo, "repl": REPL}[sys.argv[1]]
    serve(create_app(made, Code, Seen, env_name=sys.argv[1], max_concurrent_envs=_SESSIONS))
