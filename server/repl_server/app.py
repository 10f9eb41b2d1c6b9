"""`create_app`: the ASGI application of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.routing import WebSocketRoute

from repl_env.models import REPLAction, REPLObservation, REPLState, State

from .hosting import Host
from .mcp_routes import mcp_router
from .mcp_socket import MCPSocketRoute
from .refusal import Refusal
from .routes import refused, router
from .settings import Settings
from .socket import SocketRoute


def create_app(
    settings: Settings | None = None,
    *,
    environment: Callable[[], Any] | None = None,
    action: type[BaseModel] = REPLAction,
    observation: type[BaseModel] = REPLObservation,
) -> FastAPI:
    """A server as an ASGI application; `app.state.host` is what serves its sessions.

    Args:
        settings: None: the defaults.
        environment: makes an environment for each session: a class or a function, of a
            `repl_env.interfaces.Environment` or of OpenEnv's. None: `REPLEnvironment`.
        action, observation: the models of its actions and observations.

    Raises:
        TypeError: `environment` cannot be called.
    """
    if environment is not None and not callable(environment):
        kind = type(environment).__name__
        raise TypeError(f"environment must make environments, and a {kind} cannot be called")
    state = REPLState if environment is None else State
    host = Host(
        settings or Settings(),
        environment=environment,
        action=action,
        observation=observation,
        state=state,
    )
    app = FastAPI(
        title="repl-env", version=_version(), lifespan=_lifespan, strict_content_type=False
    )
    app.state.host = host
    app.include_router(router(host))
    app.include_router(mcp_router(host))
    app.router.routes.append(WebSocketRoute("/ws", SocketRoute(host)))
    app.router.routes.append(WebSocketRoute("/mcp", MCPSocketRoute(host)))
    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(Exception, refused)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.host:
        yield


def _version() -> str:
    try:
        return metadata.version("repl-env")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
