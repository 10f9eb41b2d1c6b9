"""OpenEnv's own server with `repl_env.openenv.REPLEnvironment` in it, until standard input ends.

Prints its URL when it listens.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app

from repl_env.openenv import REPLAction, REPLEnvironment, REPLObservation


async def serve() -> None:
    """See the module."""
    app = create_fastapi_app(REPLEnvironment, REPLAction, REPLObservation, max_concurrent_envs=8)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(serve())
