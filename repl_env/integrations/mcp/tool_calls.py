"""Run tool calls: step a session's episode and build the result.

Nothing of an expected answer, a key or a path of the host passes through a call, in either
direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from mcp_types import INVALID_PARAMS, CallToolResult
from pydantic import ValidationError

from repl_env.env.environment import REPLEnvironment
from repl_env.episode.effects import OnOutput
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.integrations.mcp.mcp_messages import BadMessage
from repl_env.integrations.mcp.mcp_tools import BY_NAME, Arguments, Execute, Reset, SubmitAnswer
from repl_env.integrations.mcp.tool_results import refusal, result_of_cell, result_of_reset
from repl_env.models import REPLAction, REPLObservation

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
