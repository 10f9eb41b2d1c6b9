"""The floor of a server: the same frames over the same libraries, and no session behind them.

    python -m benchmarks.server.floor

Each request is parsed and checked, each reply made and written, as ours are.
"""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from repl_env.models import CodeBlockResult, REPLAction, REPLObservation

from .listening import serve

_OBSERVATION = REPLObservation(
    result=CodeBlockResult(
        locals_snapshot={"x": "1"},
        execution_time=1e-5,
        changes=[{"name": "x", "change": "new", "type": "int", "size": 28, "preview": "1"}],
    ),
    reward=0.0,
    available_variables=["x"],
    iteration=1,
    max_iterations=10**9,
    metadata={"reward_components": {"success": 0.0}, "usage": {"cpu": 1e-5, "wall": 1e-5}},
)


async def _speak(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            request = json.loads(await socket.receive_text())
            if request["type"] == "step":
                REPLAction.model_validate(request["data"])
            observation = _OBSERVATION.model_dump(mode="json", exclude={"reward", "done"})
            data = {"observation": observation, "reward": 0.0, "done": False}
            await socket.send_text(json.dumps({"type": "observation", "data": data}))
    except WebSocketDisconnect:
        pass


if __name__ == "__main__":
    serve(Starlette(routes=[WebSocketRoute("/ws", _speak)]))
