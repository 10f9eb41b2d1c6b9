"""The least that a server of files can be: Starlette's FileResponse on uvicorn.

python -m benchmarks.plain_download FOLDER
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route


def main(folder: Path) -> None:
    """Serve the files of `folder`, and print the address."""

    async def get(request: Request) -> Response:
        return FileResponse(folder / request.path_params["name"])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        app = Starlette(routes=[Route("/{name}", get)])
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
