"""A session as the tools of a Model Context Protocol server; the endpoint serves it, too."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, unquote_to_bytes

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestId,
    Resource,
    TextResourceContents,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from repl_env import __version__
from repl_env.common.values import explain_not_json, replace_surrogates
from repl_env.env.environment import REPLEnvironment
from repl_env.episode.effects import OnOutput
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.integrations.mcp_tools import (
    BY_NAME,
    TOOLS,
    Arguments,
    Execute,
    Reset,
    SubmitAnswer,
    refusal,
    result_of_cell,
    result_of_reset,
)
from repl_env.models import REPLAction, REPLObservation

# A server of the Model Context Protocol whose tools are those of a session.
#
# The SDK speaks the protocol, in all its versions. The wire is the business of
# `repl_env.integrations.mcp_stdio` and of the endpoint.

log = logging.getLogger(__name__)

Context: TypeAlias = ServerRequestContext[Any, Any]


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
    return await settled(_translated(_call(context.lifespan_context, context, params)))


async def _list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=list(TOOLS))


async def _list_resources(
    context: Context, params: PaginatedRequestParams | None
) -> ListResourcesResult:
    cursor = None if params is None else params.cursor
    return await settled(_translated(list_resources(context.lifespan_context, cursor)))


async def _read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
    return await settled(_translated(read_resource(context.lifespan_context, params.uri)))


async def _call(
    calls: ToolCalls, context: Context, params: CallToolRequestParams
) -> CallToolResult:
    async with AsyncExitStack() as stack:
        report = None
        if context.meta is not None and "progress_token" in context.meta:
            report = await stack.enter_async_context(reporting(_reporter(context)))
        return await calls.call(params.name, params.arguments, report)


async def _translated(work: Coroutine[Any, Any, T]) -> T:
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


def _reporter(context: Context) -> Report:
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


# One message of the Model Context Protocol as text: what it is, or the error that answers it.
#
# No I/O. Stricter than the SDK's own reading, which takes a request with a wrong id for a
# notification and leaves it without an answer.


class BadMessage(Exception):
    """An invalid message, or a request for an unknown method.

    `code` is JSON-RPC's, `id` that of the request if it has one, `data` what there is to know.
    """

    def __init__(
        self, code: int, message: str, id: RequestId | None = None, data: Any = None
    ) -> None:
        self.code = code
        self.message = message
        self.id = id
        self.data = data
        super().__init__(message)

    def answer(self) -> JSONRPCError:
        """The message that says so to whoever sent it."""
        error_data = ErrorData(code=self.code, message=self.message)
        if self.data is not None:
            error_data.data = self.data
        return JSONRPCError(jsonrpc="2.0", id=self.id, error=error_data)


def parse(text: str | bytes) -> JSONRPCMessage:
    """The message that `text` is; raises BadMessage."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as reason:
        raise BadMessage(PARSE_ERROR, f"the message is no JSON: {reason}") from None
    return message_of(value)


def message_of(value: Any) -> JSONRPCMessage:
    """The message that a value read from JSON is; raises BadMessage."""
    if isinstance(value, list):
        raise BadMessage(INVALID_REQUEST, "batches are not taken: send one object at a time")
    if not isinstance(value, dict):
        raise BadMessage(INVALID_REQUEST, "a message must be an object")
    request_id = _id_of(value)
    _check_plain(value, request_id)
    if value.get("jsonrpc") != "2.0":
        raise BadMessage(INVALID_REQUEST, 'jsonrpc must be "2.0"', request_id)
    if "method" not in value:
        return _answer_of(value, request_id)
    if not isinstance(value["method"], str):
        raise BadMessage(INVALID_REQUEST, "method must be a string", request_id)
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise BadMessage(INVALID_PARAMS, "params must be an object", request_id)
    if request_id is None:
        return JSONRPCNotification(jsonrpc="2.0", method=value["method"], params=params)
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=value["method"], params=params)


def _id_of(value: dict[str, Any]) -> RequestId | None:
    if "id" not in value:
        return None
    request_id: RequestId = value["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, (int, str)):
        raise BadMessage(INVALID_REQUEST, "id must be a string or a whole number")
    return request_id


def _answer_of(value: dict[str, Any], request_id: RequestId | None) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_python(value)
    except ValidationError:
        raise BadMessage(INVALID_REQUEST, "a message needs a method", request_id) from None


def _check_plain(value: dict[str, Any], request_id: RequestId | None) -> None:
    """Refuse what is nested too deep, and numbers that JSON has no text for (1e999 is read so)."""
    if problem := explain_not_json(value):
        raise BadMessage(INVALID_REQUEST, problem, request_id)


# Output of a running cell as progress notifications: gathered, bounded, at a bounded rate.
#
# They are for whoever watches. A client that does not read them holds nothing up, and the result of
# the call has the output in any case.

# Called with the seconds since the call began, and what there is to say.
Report: TypeAlias = Callable[[float, str], Awaitable[None]]

# Of one notification. Of what is printed faster than it is told, the newest is told.
MAX_CHARACTERS = 4000

# Seconds between two notifications: as often as a person reads.
NOTIFICATION_PAUSE = 0.2

# Seconds in which the rest of a line may follow its beginning.
LINE_GATHERING = 0.03

# Seconds of silence after which a notification says that the code still runs: clients that wait a
# minute for a sign of life are common.
NOTIFICATION_SILENCE = 10.0


@asynccontextmanager
async def reporting(report: Report) -> AsyncGenerator[OnOutput]:
    """While this is entered, what the function that it yields is told goes to `report`."""
    output = _Output()
    task = asyncio.create_task(_tell(output, report))
    try:
        yield output.add
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # what could not be told costs nothing else


class _Output:
    """The output that no notification has carried yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._text = ""
        self._dropped = 0

    def add(self, stream: str, text: str) -> None:
        gathered = self._text + text
        self._text = gathered[-MAX_CHARACTERS:]
        self._dropped += len(gathered) - len(self._text)
        self.news.set()

    def take(self) -> str:
        dropped = f"... {self._dropped} characters ...\n" if self._dropped else ""
        text, self._text, self._dropped = self._text, "", 0
        self.news.clear()
        return dropped + text


async def _tell(output: _Output, report: Report) -> None:
    began = time.monotonic()
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTIFICATION_SILENCE):
                await output.news.wait()
                await asyncio.sleep(LINE_GATHERING)
        seconds = time.monotonic() - began
        await report(seconds, output.take() or f"The code has run for {seconds:.0f} s.")
        await asyncio.sleep(NOTIFICATION_PAUSE)


# Run tool calls: step a session's episode and build the result.
#
# Nothing of an expected answer, a key or a path of the host passes through a call, in either
# direction.

T = TypeVar("T")

# A model that works for a person counts no iterations: its task ends by the answer.
MANY_ITERATIONS = 1_000_000

# Seconds that `timeout_s` may ask for: what clients wait for a tool, if they are patient.
LONGEST_CELL_S = 600.0

# The arguments of a reset that are about a new session.
_NEW_SESSION = frozenset({"context", "contexts", "files", "seed"})

_DONE = (
    "The task is over and its answer was taken. Call `reset` to begin another; with "
    "`keep_variables` it goes on in this session."
)
_ABORTED = "The session was lost, by no fault of the code. Call `reset` to begin a new one."
_NOTHING_KEPT = "There is no session to go on in. Call `reset` without `keep_variables`."
_KEPT_AND_NEW = "`keep_variables` goes on in the session that is there: it does not go with {}."


class ToolSession(Protocol):
    """A session as calls play it, with the errors of `REPLEnvironment`."""

    async def reset(self, **request: Any) -> REPLObservation:
        """Begin an episode in a new session."""

    async def follow_up(self, task_prompt: str, max_iterations: int) -> REPLObservation:
        """Begin another episode in the session that is there."""

    async def step(
        self, action: REPLAction, timeout_s: float | None, on_output: OnOutput | None
    ) -> REPLObservation:
        """Run code, or submit an answer."""

    @property
    def files(self) -> Any:
        """The files of the session, whose methods are awaited; NotReset without an episode."""


class EnvironmentToolSession:
    """An environment of this process, as calls play it."""

    def __init__(self, environment: REPLEnvironment) -> None:
        self._environment = environment

    @property
    def files(self) -> Any:
        """As `ToolSession.files`."""
        return self._environment.files

    async def reset(self, **request: Any) -> REPLObservation:
        """As `ToolSession.reset`."""
        return await self._environment.reset_async(**request)

    async def follow_up(self, task_prompt: str, max_iterations: int) -> REPLObservation:
        """As `ToolSession.follow_up`."""
        return await self._environment.follow_up_async(task_prompt, max_iterations=max_iterations)

    async def step(
        self, action: REPLAction, timeout_s: float | None, on_output: OnOutput | None
    ) -> REPLObservation:
        """As `ToolSession.step`."""
        return await self._environment.step_async(action, timeout_s, on_output=on_output)


class ToolCalls:
    """Calls of the tools on one session, one after the other.

    A call before any reset begins an episode by itself.

    Args:
        session: the session.
        contexts: what an episode begins with whose `reset` names none.
        longest_cell_s: what `timeout_s` may ask for, in seconds.
    """

    def __init__(
        self,
        session: ToolSession,
        *,
        contexts: Mapping[str, str | bytes] | None = None,
        longest_cell_s: float = LONGEST_CELL_S,
    ) -> None:
        self._session = session
        self._contexts = dict(contexts or {})
        self._longest_cell_s = longest_cell_s
        self._turn = asyncio.Lock()

    async def on_files(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do `work` on the files of the session, between two calls.

        Raises:
            NotReset: no episode has begun.
        """
        async with self._turn:
            return await work(self._session.files)

    async def begin(self) -> None:
        """Begin an episode, as a call before any reset does."""
        await self._begin({})

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None, on_output: OnOutput | None = None
    ) -> CallToolResult:
        """Call a tool. `on_output` is told what code prints, while it runs.

        A mistake of the model is a result that explains it.

        Raises:
            BadMessage: there is no such tool.
            Exception: what the session raises and the model can do nothing about.
        """
        if name not in BY_NAME:
            raise BadMessage(INVALID_PARAMS, f"there is no tool {name[:100]!r}")
        try:
            parsed = BY_NAME[name].arguments.model_validate(arguments or {})
            async with self._turn:
                return await self._act(parsed, on_output)
        except ValidationError as error:
            return refusal(_complaints(error))
        except EpisodeDone:
            return refusal(_DONE)
        except EpisodeAborted:
            return refusal(_ABORTED)

    async def _act(self, arguments: Arguments, on_output: OnOutput | None) -> CallToolResult:
        match arguments:
            case Execute(code=code, timeout_s=timeout_s):
                if timeout_s is not None and timeout_s > self._longest_cell_s:
                    return refusal(f"timeout_s may be {self._longest_cell_s:g} at most")
                observation = await self._step(REPLAction(code=code), timeout_s, on_output)
                return result_of_cell(observation)
            case SubmitAnswer(answer=answer):
                action = REPLAction(is_final=True, final_answer=answer)
                return result_of_cell(await self._step(action, None, None))
            case Reset():
                return await self._reset(arguments)
            case _:
                raise AssertionError(arguments)

    async def _reset(self, arguments: Reset) -> CallToolResult:
        try:
            if arguments.keep_variables:
                return await self._follow_up_tool(arguments)
            return result_of_reset(await self._begin(_given(arguments)))
        except (TypeError, ValueError, OSError) as error:
            # So environments say which argument is wrong, and which file there is no room for.
            return refusal(str(error))

    async def _step(
        self, action: REPLAction, timeout_s: float | None, on_output: OnOutput | None
    ) -> REPLObservation:
        try:
            return await self._session.step(action, timeout_s, on_output)
        except NotReset:
            await self._begin({})
        return await self._session.step(action, timeout_s, on_output)

    async def _begin(self, arguments: dict[str, Any]) -> REPLObservation:
        if self._contexts and not arguments.keys() & {"context", "contexts"}:
            arguments["contexts"] = self._contexts
        return await self._session.reset(**{"max_iterations": MANY_ITERATIONS, **arguments})

    async def _follow_up_tool(self, arguments: Reset) -> CallToolResult:
        if unfit := sorted(_NEW_SESSION & arguments.model_fields_set):
            return refusal(_KEPT_AND_NEW.format(", ".join(unfit)))
        iterations = arguments.max_iterations or MANY_ITERATIONS
        try:
            return result_of_reset(
                await self._session.follow_up(arguments.task_prompt or "", iterations)
            )
        except NotReset:
            return refusal(_NOTHING_KEPT)


def _given(arguments: Reset) -> dict[str, Any]:
    """Return the given arguments of a reset by name, without copies."""
    names = arguments.model_fields_set - {"keep_variables"}
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _complaints(error: ValidationError) -> str:
    """Describe errors in the arguments, without the values, which may be long."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    locations = [".".join(map(str, each["loc"]))[:100] for each in found]
    lines = [f"{location}: {each['msg']}" for location, each in zip(locations, found, strict=True)]
    return "The arguments are wrong. " + "; ".join(lines[:10])


# Files of a session's workspace as resources of the Model Context Protocol.
#
# A file `a/b.txt` is the resource `workspace:///a/b.txt`, percent-encoded byte by byte.

SCHEME = "workspace:///"
# Bytes of a file that is read: a message carries all of it, and as base64 a third more.
MAX_RESOURCE_BYTES = 16 << 20
# Entries of a listing, directories included, and of one page of it.
MAX_RESOURCES, RESOURCES_PER_PAGE = 100_000, 1000


async def list_resources(calls: ToolCalls | None, cursor: str | None) -> ListResourcesResult:
    """Return a page of the regular files; none without an episode. `cursor`: of the page before.

    Raises:
        BadMessage: the cursor is of no page.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise BadMessage(INVALID_PARAMS, "the cursor is unknown")
    first = int(cursor or 0)
    try:
        found = [] if calls is None else await calls.on_files(_list)
    except NotReset:
        found = []
    files = [file for file in found if file.kind == "file"]
    more = str(first + RESOURCES_PER_PAGE) if len(files) > first + RESOURCES_PER_PAGE else None
    return ListResourcesResult(
        resources=[_resource(file) for file in files[first : first + RESOURCES_PER_PAGE]],
        next_cursor=more,
    )


async def _list(files: Any) -> Any:
    return await files.list(limit=MAX_RESOURCES)


def _resource(file: Any) -> Resource:
    return Resource(uri=_uri(file.path), name=replace_surrogates(file.path), size=file.size)


async def read_resource(calls: ToolCalls | None, uri: str) -> ReadResourceResult:
    """Return the content of a file: as text if it is UTF-8, else as base64.

    Raises:
        BadMessage: there is no such file, or it cannot be read.
    """
    if not uri.startswith(SCHEME):
        raise _unreadable(uri, f"resources begin with {SCHEME}")
    path = os.fsdecode(unquote_to_bytes(uri.removeprefix(SCHEME)))
    if calls is None:
        raise _unreadable(uri, "there is no session")
    try:
        content = await calls.on_files(lambda files: files.get(path, limit=MAX_RESOURCE_BYTES))
    except NotReset:
        raise _unreadable(uri, "there is no session yet; call `execute` or `reset`") from None
    except OSError as error:
        # An error without the path of the workspace is the host's own.
        if not isinstance(error.filename, str):
            raise
        raise _unreadable(uri, error.strerror or "it cannot be read") from None
    except ValueError as error:
        raise _unreadable(uri, str(error)) from None
    return ReadResourceResult(contents=[_contents(uri, content)])


def _contents(uri: str, content: bytes) -> TextResourceContents | BlobResourceContents:
    # By the content, and never by the name, which the session chooses: a client shows no page.
    try:
        return TextResourceContents(uri=uri, mime_type="text/plain", text=content.decode())
    except UnicodeDecodeError:
        blob = base64.b64encode(content).decode()
        return BlobResourceContents(uri=uri, mime_type="application/octet-stream", blob=blob)


def _uri(path: str) -> str:
    return SCHEME + quote(os.fsencode(path))


def _unreadable(uri: str, reason: str) -> BadMessage:
    return BadMessage(INVALID_PARAMS, f"{uri[:200]} cannot be read: {reason[:500]}")
