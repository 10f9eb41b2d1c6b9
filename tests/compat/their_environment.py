"""OpenEnv's own server with a small environment written on OpenEnv alone, as its `repl_env` looks.

Prints its URL when it listens, and serves until standard input ends. It has one session at a time
to give. Code runs in this process: it is the tests' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel


class REPLAction(Action):
    code: str = ""
    is_final: bool = False
    final_answer: str | None = None


class CodeBlockResult(BaseModel):
    stdout: str = ""
    stderr: str = ""
    locals_snapshot: dict[str, str] = {}
    execution_time: float = 0.0
    success: bool = True
    exception: str | None = None


class REPLObservation(Observation):
    result: CodeBlockResult
    context_preview: str | None = None
    context_length: int = 0
    available_variables: list[str] = []
    iteration: int = 0
    max_iterations: int = 30


class REPLState(State):
    context: str | None = None
    namespace_keys: list[str] = []


class TheirEnvironment(Environment[REPLAction, REPLObservation, REPLState]):
    """Runs code by `exec`."""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        context: str | None = None,
        **kwargs: Any,
    ) -> REPLObservation:
        self._names: dict[str, Any] = {"context": context or ""}
        self._state = REPLState(episode_id=episode_id, context=context)
        return self._observed(f"ready {sorted(kwargs)}")

    def step(
        self, action: REPLAction, timeout_s: float | None = None, **kwargs: Any
    ) -> REPLObservation:
        self._state.step_count += 1
        if action.is_final:
            found = {"final_answer": action.final_answer}
            return self._observed("", done=True, reward=1.0, metadata=found)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(action.code, self._names)
        return self._observed(printed.getvalue())

    @property
    def state(self) -> REPLState:
        self._state.namespace_keys = [name for name in self._names if name != "__builtins__"]
        return self._state

    def _observed(self, stdout: str, **more: Any) -> REPLObservation:
        length = len(self._names["context"])
        result = CodeBlockResult(stdout=stdout)
        return REPLObservation(result=result, context_length=length, **more)


async def serve() -> None:
    """See the module."""
    app = create_fastapi_app(TheirEnvironment, REPLAction, REPLObservation)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(serve())
