"""A server of the Model Context Protocol whose tools are those of a session.

The SDK speaks the protocol, in all its versions. The wire is the business of
`repl_env.integrations.mcp.stdio_transport`
and of the endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from repl_env import __version__
from repl_env.integrations.mcp.mcp_messages import BadMessage
from repl_env.integrations.mcp.mcp_tools import TOOLS
from repl_env.integrations.mcp.output_notifications import reporting
from repl_env.integrations.mcp.tool_calls import ToolCalls
from repl_env.integrations.mcp.workspace_resources import list_resources, read_resource

log = logging.getLogger(__name__)

Context: TypeAlias = ServerRequestContext[Any, Any]
T = TypeVar("T")


def server(instructions: str, calls: ToolCalls | None = None) -> Server[Any]:
    """A server of the tools, whose calls go to `calls`.

    None: whoever drives the server by the SDK's `serve_one` gives the calls as its lifespan state.
    """

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[ToolCalls | None]:
        yield calls

    return Server(
        "repl-env",
        version=__version__,
        title="Python REPL",
        instructions=instructions,
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_read_resource=_read_resource,
    )


def instructions(*, isolated: bool, more: str = "") -> str:
    """Return the instructions about a session for a client's model."""
    sandbox_note = (
        "It is held by a sandbox, without network or files of the machine it runs on."
        if isolated
        else "Nothing isolates it from the machine it runs on."
    )
    return f"A Python session that stays from call to call. {sandbox_note}{more}"


async def _call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
    return await settled(_reported(_call(context.lifespan_context, context, params)))


async def _list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=list(TOOLS))


async def _list_resources(
    context: Context, params: PaginatedRequestParams | None
) -> ListResourcesResult:
    cursor = None if params is None else params.cursor
    return await settled(_reported(list_resources(context.lifespan_context, cursor)))


async def _read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    return await settled(_reported(read_resource(context.lifespan_context, params.uri)))


async def _call(
    calls: ToolCalls, context: Context, params: CallToolRequestParams
) -> CallToolResult:
    async with AsyncExitStack() as stack:
        report = None
        if context.meta is not None and "progress_token" in context.meta:
            report = await stack.enter_async_context(reporting(_reporter(context)))
        return await calls.call(params.name, params.arguments, report)


async def _reported(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and turn its errors into those of the protocol."""
    try:
        return await work
    except BadMessage as error:
        raise MCPError(error.code, error.message) from None
    except MCPError:
        raise
    except Exception as error:
        # Boundary: what a client is told of our own failures is where to find them.
        where = uuid.uuid4().hex
        log.exception("call %s failed", where)
        raise MCPError(INTERNAL_ERROR, "the call failed here", {"id": where}) from error


def _reporter(context: Context) -> Callable[[float, str], Awaitable[None]]:
    async def report(seconds: float, text: str) -> None:
        await context.session.report_progress(seconds, message=text)

    return report


async def settled(work: Coroutine[Any, Any, T]) -> T:
    """`await work`; but whoever is cancelled meanwhile goes only when `work` has ended.

    The SDK cancels by anyio's scopes, which cancel a task again each time it waits. A cell that is
    interrupted waits for its end: it is cancelled once, and waited for.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is there to be told
        raise
