"""OpenEnv's server with two environments, in an interpreter that has `openenv`.

    python -m benchmarks.server.openenv_peers echo|repl

"repl" stands for OpenEnv's own REPL environment, which is in no package: the same executor, that of
smolagents, and the same fields on the wire, with less done around them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, Field
from smolagents.local_python_executor import LocalPythonExecutor

from .listening import serve

_SESSIONS = 1024


class Code(Action):  # type: ignore[misc]
    """What a step runs."""

    code: str


class Result(BaseModel):
    """What code came to."""

    stdout: str = ""
    stderr: str = ""
    locals_snapshot: dict[str, str] = Field(default_factory=dict)
    execution_time: float = 0.0
    success: bool = True
    exception: str | None = None


class Seen(Observation):  # type: ignore[misc]
    """What a policy sees of it."""

    result: Result
    context_preview: str | None = None
    context_length: int = 0
    available_variables: list[str] = Field(default_factory=list)
    iteration: int = 0
    max_iterations: int = 30


class Echo(Environment):  # type: ignore[misc]
    """Says what it was told."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        return Seen(result=Result())

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        return Seen(result=Result(stdout=action.code), reward=0.0)

    @property
    def state(self) -> State:
        return State()


class REPL(Echo):
    """Runs code in an interpreter of Python written in Python."""

    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Seen:
        self._executor = LocalPythonExecutor(additional_authorized_imports=[])
        self._executor.send_tools({})
        self._iteration = 0
        return Seen(result=Result())

    def step(self, action: Code, timeout_s: Any = None, **_: Any) -> Seen:
        self._iteration += 1
        before, begun = set(self._executor.state), time.perf_counter()
        output = self._executor(action.code)
        taken = time.perf_counter() - begun
        names = [name for name in self._executor.state if not name.startswith("_")]
        made = {name: repr(self._executor.state[name]) for name in names if name not in before}
        result = Result(stdout=output.logs, locals_snapshot=made, execution_time=taken)
        return Seen(result=result, available_variables=names, iteration=self._iteration, reward=0.0)


if __name__ == "__main__":
    made = {"echo": Echo, "repl": REPL}[sys.argv[1]]
    serve(create_app(made, Code, Seen, env_name=sys.argv[1], max_concurrent_envs=_SESSIONS))
