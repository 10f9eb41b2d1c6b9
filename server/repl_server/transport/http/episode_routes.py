"""HTTP routes of episodes and of the server itself (docs/endpoint.md)."""

# Annotations are not postponed: FastAPI evaluates them, and some models are created per server.

import asyncio
import math
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import HTTPConnection

from repl_env.interfaces import EnvironmentMetadata

from ...protocol.error_mapping import request_error_of
from ...protocol.frames import ClientRequest
from ...protocol.replies import ServerReply, text_of
from ...protocol.request_error import RequestError, socket_closed_error
from ...protocol.request_models import REPLResetArguments, RequestId, ResetArguments, Seconds
from ...sessions.manager import SessionManager
from ...sessions.server_session import ServerSession
from ...tenants.tenant import tenant_of
from .disconnect import run_until_disconnect
from .json_route import StrictJSONRoute

SESSION = "X-Session-Id"
# Session header value of a reset that opens a session; the response has its token.
NEW = "new"
_NO_SESSION_HINT = (
    "no episode has begun: a request without a session has an environment of its own. Send a reset"
    f" with the header `{SESSION}: {NEW}`, and send that header of the response with each step"
)


class EpisodeResponse(BaseModel):
    """The outcome of a reset or a step."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class HealthResponse(BaseModel):
    """The server process responds."""

    status: str = "healthy"


class ReadinessResponse(BaseModel):
    """Capacity for sessions. `waiting`: clients in the queue."""

    ready: bool
    sessions: int
    free: int
    waiting: int


class SchemasResponse(BaseModel):
    """JSON schemas of actions, observations and states."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]


class ErrorResponse(BaseModel):
    """A failed request; `id` identifies the error in the server's log."""

    model_config = ConfigDict(extra="allow")

    message: str
    code: str
    id: str
    errors: list[dict[str, Any]] | None = None


class SingleReply:
    """A reply sink for one reply."""

    blocked_since: float | None = None

    def __init__(self) -> None:
        self._reply: asyncio.Future[ServerReply] = asyncio.get_running_loop().create_future()

    @property
    def gone(self) -> bool:
        """True if the reply is there, or its receiver has been cancelled."""
        return self._reply.done()

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """As `ReplySink.deliver`."""
        if not self._reply.done() and reply.type != "output":
            self._reply.set_result(reply)

    def end(self, code: int, reason: str) -> None:
        """As `ReplySink.end`."""
        if not self._reply.done():
            self._reply.set_exception(socket_closed_error(code, reason))

    async def reply(self) -> ServerReply:
        """Wait for the reply; raises the RequestError of an error reply."""
        reply = await self._reply
        if reply.refusal is not None:
            raise reply.refusal
        return reply


class EpisodeRoutes:
    """Handlers of the routes."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def reset(
        self, request: HTTPRequest, arguments: ResetArguments, session: str | None
    ) -> Response:
        """Start an episode in a session, or in an environment that is closed afterwards."""
        client_request = ClientRequest("reset", arguments)
        if session != NEW:
            return await self._ask(request, client_request, session)
        return await run_until_disconnect(request, self._begin(request, client_request))

    async def step(self, request: HTTPRequest, body: Any, session: str | None) -> Response:
        """Perform an action in a session, or in an environment that is closed afterwards."""
        named = body.request_id if session is not None else None
        client_request = ClientRequest("step", body.action, id=named, timeout_s=body.timeout_s)
        return await self._ask(request, client_request, session)

    async def state(self, request: HTTPRequest, session: str | None) -> Response:
        """The state of a session, or of an environment that is closed afterwards."""
        return await self._ask(request, ClientRequest("state", {}), session)

    async def end(self, request: HTTPRequest, session: str) -> Response:
        """Close a session."""
        await self._manager.find(tenant_of(request.scope), session).close()
        return Response(status_code=204)

    async def _ask(
        self, request: HTTPRequest, client_request: ClientRequest, session: str | None
    ) -> Response:
        tenant = tenant_of(request.scope)
        if session is not None:
            return _response(await _submit(self._manager.find(tenant, session), client_request))
        return await run_until_disconnect(request, self._pass(request, client_request))

    async def _begin(self, request: HTTPRequest, client_request: ClientRequest) -> Response:
        opened = await self._manager.open(tenant_of(request.scope))
        try:
            reply = await _submit(opened, client_request)
        except BaseException:
            opened.end()
            raise
        return _response(reply, {SESSION: opened.token})

    async def _pass(self, request: HTTPRequest, client_request: ClientRequest) -> Response:
        opened = await self._manager.open(tenant_of(request.scope))
        try:
            return _response(await _submit(opened, client_request))
        except RequestError as refusal:
            if refusal.code == "NOT_RESET":  # a reset without a session would not help
                refusal.message = _NO_SESSION_HINT
            raise
        finally:
            await opened.close()

    async def metadata(self) -> EnvironmentMetadata:
        """The environment's metadata."""
        return await self._manager.metadata()

    async def ready(self, response: Response) -> ReadinessResponse:
        """Report whether a session could be opened now."""
        admission = self._manager.admission
        ready = admission.free > 0 and not self._manager.draining
        response.status_code = 200 if ready else 503
        return ReadinessResponse(
            ready=ready, sessions=admission.open, free=admission.free, waiting=admission.waiting
        )

    async def accepting(self) -> HealthResponse:
        """For proxies: whether the server accepts requests; 503 while it is stopping."""
        self._manager.check_open()
        return HealthResponse()

    async def schema(self) -> SchemasResponse:
        """JSON schemas of actions, observations and states."""
        return SchemasResponse(
            action=self._manager.action.model_json_schema(),
            observation=self._manager.observation.model_json_schema(),
            state=self._manager.state_model.model_json_schema(),
        )


# Header of requests and responses.
_TOKEN = Header(alias=SESSION, max_length=200, description="A session's token, or `new`.")
_Token = Annotated[str | None, _TOKEN]
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse} for status in (400, 403, 404, 409, 422, 429, 503)
}


def episode_router(manager: SessionManager) -> APIRouter:
    """Create the routes."""
    routes = EpisodeRoutes(manager)
    reset_model, step_model = _models(manager)
    made = APIRouter(route_class=StrictJSONRoute, strict_content_type=False)

    async def reset(
        request: HTTPRequest,
        body: reset_model | None = None,  # type: ignore[valid-type]
        session: _Token = None,
    ) -> Response:
        """Start an episode. Without a session, its environment is closed afterwards."""
        return await routes.reset(request, body or reset_model(), session)

    async def step(
        request: HTTPRequest,
        body: step_model,  # type: ignore[valid-type]
        session: _Token = None,
    ) -> Response:
        """Perform an action. Without a session, in a new environment that is closed afterwards."""
        return await routes.step(request, body, session)

    async def state(request: HTTPRequest, session: _Token = None) -> Response:
        """The state of the current episode."""
        return await routes.state(request, session)

    async def end(request: HTTPRequest, session: Annotated[str, _TOKEN]) -> Response:
        """Close a session."""
        return await routes.end(request, session)

    episode_options: dict[str, Any] = {"responses": _REFUSALS, "tags": ["episode"]}
    server_options: dict[str, Any] = {"tags": ["server"]}
    made.add_api_route(
        "/reset", reset, methods=["POST"], response_model=EpisodeResponse, **episode_options
    )
    made.add_api_route(
        "/step", step, methods=["POST"], response_model=EpisodeResponse, **episode_options
    )
    made.add_api_route(
        "/state", state, methods=["GET"], response_model=manager.state_model, **episode_options
    )
    made.add_api_route("/session", end, methods=["DELETE"], status_code=204, **episode_options)
    made.add_api_route("/health", health, methods=["GET"], **server_options)
    made.add_api_route("/accepting", routes.accepting, methods=["GET"], **server_options)
    made.add_api_route("/ready", routes.ready, methods=["GET"], **server_options)
    made.add_api_route("/metadata", routes.metadata, methods=["GET"], **server_options)
    made.add_api_route("/schema", routes.schema, methods=["GET"], **server_options)
    return made


async def health() -> HealthResponse:
    """Health check: the process responds."""
    return HealthResponse()


def error_response(request: HTTPConnection, error: Exception) -> Response:
    """The response to a request that failed with `error`."""
    refusal = request_error_of(error)
    note_error(request, refusal)
    after = refusal.retry_after
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    return _json(text_of(refusal.data()), headers, refusal.status)


async def error_response_async(request: HTTPConnection, error: Exception) -> Response:
    """As `error_response`, for the event loop: Starlette calls blocking handlers in a thread."""
    return error_response(request, error)


def note_error(request: HTTPConnection, refusal: RequestError) -> None:
    """Attach the error to the request, for the guard to log and count."""
    request.scope.setdefault("state", {})["refusal"] = refusal


def _models(manager: SessionManager) -> tuple[type[ResetArguments], type[BaseModel]]:
    step = create_model(
        "StepRequest",
        __config__=ConfigDict(extra="allow"),
        action=(manager.action, Field(description="The action to take.")),
        timeout_s=(Seconds | None, Field(default=None, description="Of execution, in seconds.")),
        request_id=(RequestId | None, Field(default=None, description="As the `id` of a frame.")),
    )
    return (REPLResetArguments if manager.environment is None else ResetArguments), step


async def _submit(session: ServerSession, client_request: ClientRequest) -> ServerReply:
    single = SingleReply()
    session.submit(client_request, single)
    return await single.reply()


def _response(reply: ServerReply, headers: dict[str, str] | None = None) -> Response:
    return _json(reply.data, headers)


def _json(text: str, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(text, status, headers, media_type="application/json")
