"""`create_app`: the ASGI application of a server."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import WebSocketRoute

import repl_env
from repl_env.models import REPLAction, REPLObservation, REPLState, State

from .auth import Authenticator, configured_keys
from .file_routes import file_router, upload_router
from .guard import BrowserHeaders, GuardContext, RequestGuard, page_headers
from .manager import SessionManager
from .mcp import MCPSocketRoute, mcp_router
from .mcp_tools import MCPToolServer
from .routes import SESSION, episode_router, task_router
from .routing import answer_unrouted, error_response_async
from .settings import Settings
from .subcalls import check_list, check_own
from .telemetry import metrics_router
from .tenants import RequestError
from .web.pages import is_page_request, page_routes
from .websocket import SessionSocketRoute

__all__ = ["create_app"]

# Response headers that pages of allowed origins may read.
_EXPOSED = [
    SESSION,
    "Retry-After",
    "Upload-Offset",
    "Content-Range",
    "Content-Disposition",
    "ETag",
]


def create_app(
    settings: Settings | None = None,
    *,
    environment: Callable[[], Any] | None = None,
    action: type[BaseModel] = REPLAction,
    observation: type[BaseModel] = REPLObservation,
) -> FastAPI:
    """A server as an ASGI application; `app.state.manager` is its session manager.

    Args:
        settings: default: `Settings()`.
        environment: class or function that creates the environment of a session: a
            `repl_env.interfaces.Environment` or one of OpenEnv. Default: `REPLEnvironment`.
        action, observation: the models of its actions and observations.

    Raises:
        TypeError: `environment` is not callable, or is an asynchronous function.
        ValueError: keys are required and none exist, or a setting is invalid.
        OSError: the key file cannot be read.
    """
    if environment is not None and not callable(environment):
        kind = type(environment).__name__
        raise TypeError(f"environment must be a class or a function, not a {kind}")
    if inspect.iscoroutinefunction(environment):
        raise TypeError("environment must be a class or a plain function, not an asynchronous one")
    state = REPLState if environment is None else State
    settings = settings or Settings()
    check_list(settings.llm_urls)
    check_own(settings.llm)
    keys = configured_keys(settings)
    manager = SessionManager(
        settings,
        keys=keys,
        environment=environment,
        action=action,
        observation=observation,
        state=state,
    )
    app = FastAPI(
        title="repl-env",
        version=repl_env.__version__,
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's page loads scripts from another site
        redoc_url=None,
        strict_content_type=False,
    )
    app.state.manager = manager
    app.state.guard_context = GuardContext(
        settings=settings,
        authenticator=Authenticator(settings, keys),
        quotas=manager.quotas,
        inbound=manager.inbound,
        telemetry=manager.telemetry,
    )
    _add_routes(app, manager)
    _add_layers(app, app.state.guard_context)
    return app


def _add_routes(app: FastAPI, manager: SessionManager) -> None:
    # First, because routes are tried in order and most sessions begin here.
    app.router.routes.append(WebSocketRoute("/ws", SessionSocketRoute(manager)))
    app.include_router(episode_router(manager))
    app.include_router(metrics_router(manager.telemetry.metrics, manager.settings.metrics_key))
    app.include_router(upload_router(manager))
    app.include_router(file_router(manager))
    app.include_router(task_router(manager))
    tool_server = MCPToolServer(manager)
    manager.handlers["mcp"] = tool_server.handle
    app.include_router(mcp_router(manager, tool_server))
    app.router.routes.append(WebSocketRoute("/mcp", MCPSocketRoute(manager)))
    app.router.routes.extend(page_routes(playground=manager.has_playground))
    app.add_exception_handler(RequestError, error_response_async)
    app.add_exception_handler(RequestValidationError, error_response_async)
    answer_unrouted(app)


def _add_layers(app: FastAPI, context: GuardContext) -> None:
    """Add the middleware; the last one added is the outermost."""
    public = {"is_public": is_page_request} if context.settings.has_playground else {}
    app.add_middleware(RequestGuard, context=context, **public)
    if context.settings.origins:
        # Outside the guard: browsers send preflight requests without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.authenticator.origins.named,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            allow_private_network=True,
        )
    app.add_middleware(BrowserHeaders, headers=page_headers(context.settings.frame_ancestors))


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.manager:
        yield
