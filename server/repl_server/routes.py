"""HTTP routes of episodes, of the server itself and of tasks (docs/endpoint.md)."""

# Annotations are not postponed: FastAPI evaluates them, and some models are created per server.

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_core import to_json

from repl_env import __version__
from repl_env.interfaces import EnvironmentMetadata

from .manager import SessionManager
from .protocol import (
    ClientRequest,
    REPLResetArguments,
    RequestId,
    ResetArguments,
    Seconds,
    ServerReply,
)
from .routing import StrictJSONRoute, json_response, run_until_disconnect
from .session import ServerSession
from .tenants import RequestError, socket_closed_error, tenant_of

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
    """Capacity for sessions. `waiting`: clients in the queue. `version`: of the server."""

    ready: bool
    sessions: int
    free: int
    waiting: int
    version: str


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
            ready=ready,
            sessions=admission.open,
            free=admission.free,
            waiting=admission.waiting,
            version=__version__,
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
        body: Annotated[reset_model, Body(default_factory=reset_model)],  # type: ignore[valid-type]
        session: _Token = None,
    ) -> Response:
        """Start an episode. Without a session, its environment is closed afterwards."""
        return await routes.reset(request, body, session)

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
    return json_response(reply.data, headers)


# HTTP routes that list an environment's tasks: OpenEnv's task interface (docs/endpoint.md).

_STANDARD_SPLITS = frozenset({"train", "validation", "test"})


class SplitRequest(BaseModel):
    """A split of the environment's tasks."""

    model_config = ConfigDict(extra="ignore")

    split: str = Field(description="Name of the split.")


class TaskRequest(SplitRequest):
    """One task of a split."""

    index: int = Field(description="Number of the task in its split, from 0.")


class TaskRangeRequest(SplitRequest):
    """A slice of a split's tasks."""

    start: int | None = Field(default=None, description="First task; default: the first one.")
    stop: int | None = Field(default=None, description="Task to end before; default: none.")


class TaskRoutes:
    """Handlers of the routes."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def list_environments(self) -> list[str]:
        """The name of the one environment of this server."""
        return [(await self._manager.metadata()).name]

    async def splits(self, env_name: str) -> Response:
        """The splits of the environment's tasks."""
        await self._check(env_name)
        splits = await self._manager.find_tasks("list_splits")
        return _json_of([_split(split) for split in splits])

    async def tasks(self, env_name: str, body: SplitRequest) -> Response:
        """Descriptions of all tasks of a split."""
        await self._check(env_name)
        tasks = await self._manager.find_tasks("list_tasks", body.split)
        return _json_of({"tasks": tasks, "env_name": env_name})

    async def num_tasks(self, env_name: str, body: SplitRequest) -> Response:
        """The number of tasks of a split."""
        await self._check(env_name)
        return _json_of({"num_tasks": await self._manager.find_tasks("num_tasks", body.split)})

    async def task(self, env_name: str, body: TaskRequest) -> Response:
        """The description of a task."""
        await self._check(env_name)
        return _json_of(
            {"task": await self._manager.find_tasks("get_task", body.split, body.index)}
        )

    async def task_range(self, env_name: str, body: TaskRangeRequest) -> Response:
        """Descriptions of some tasks of a split."""
        await self._check(env_name)
        chosen = body.split, body.start, body.stop
        return _json_of({"tasks": await self._manager.find_tasks("get_task_range", *chosen)})

    async def _check(self, env_name: str) -> None:
        name = (await self._manager.metadata()).name
        if env_name.lower() != name.lower():
            message = f"no environment {env_name[:100]!r}; this server has {name!r}"
            raise RequestError("UNKNOWN_PATH", message)


def task_router(manager: SessionManager) -> APIRouter:
    """Create the routes. A server of plain sessions has no tasks, and does not document them."""
    routes = TaskRoutes(manager)
    options: dict[str, Any] = {
        "tags": ["tasks"],
        "include_in_schema": manager.environment is not None,
    }
    made = APIRouter(route_class=StrictJSONRoute, strict_content_type=False)
    made.add_api_route("/list_environments", routes.list_environments, methods=["GET"], **options)
    made.add_api_route("/{env_name}/splits", routes.splits, methods=["GET"], **options)
    for name in ("tasks", "num_tasks", "task", "task_range"):
        path = f"/{{env_name}}/{name}"
        made.add_api_route(path, getattr(routes, name), methods=["POST"], **options)
    return made


def _split(split: Any) -> Any:
    """A split as an object: a name alone gets the type of its name."""
    if isinstance(split, (BaseModel, dict)):
        return split
    name = str(split)
    return {"name": name, "type": name if name in _STANDARD_SPLITS else "validation"}


def _json_of(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")
