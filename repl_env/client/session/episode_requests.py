"""`EpisodeRequests`: the requests of an episode on a server, with checked arguments and results."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from repl_env.client.protocol import reply_results
from repl_env.client.protocol.client_frames import RequestFrame
from repl_env.client.session.request_builder import (
    action_data,
    check_callback,
    follow_up_data,
    plain_int,
)
from repl_env.client.session.reset_data import check_reset
from repl_env.errors import NotSupported
from repl_env.models import REPLAction, REPLObservation, REPLState, StepResult

if TYPE_CHECKING:
    from repl_env.client.session.request_pipeline import OutputCallback
    from repl_env.client.session.session_client import SessionClient
    from repl_env.client.upload.resumable_upload import OnUpload
    from repl_env.episode.call_options import FollowUpOptions, ResetOptions
    from repl_sandbox.types import JSON

Result = StepResult[REPLObservation]


class EpisodeRequests:
    """The requests of an episode, in the current session of `session_client`.

    An OpenEnv server knows fewer of them: NotSupported names the one or the argument that it lacks.
    """

    def __init__(self, session_client: SessionClient) -> None:
        self._session_client = session_client

    async def reset(self, options: ResetOptions, on_upload: OnUpload | None) -> Result:
        """Begin an episode, in a new session of the engine."""
        check_reset(options)
        check_callback("on_upload", on_upload)
        return reply_results.step_result(await self._session_client.reset(options, on_upload))

    async def step(
        self, action: REPLAction, timeout_s: float | None, on_output: OutputCallback | None
    ) -> Result:
        """Take a step; `on_output` gets the output as it arrives, or at the end from OpenEnv's."""
        data = action_data(action)
        check_callback("on_output", on_output)
        native = self._session_client.require_pipeline().native
        if timeout_s is not None and not native:
            raise NotSupported("timeout_s: this server takes none, and has a limit of its own")
        if action.format_error is not None and not native:
            raise NotSupported("format_error: this server has no such step, and would run code")
        stream = native and on_output is not None
        request = RequestFrame("step", data, timeout_s, stream)
        result = reply_results.step_result(
            await self._session_client.ask(request, on_output if stream else None)
        )
        if on_output is not None and not stream:
            await _replay_output(result, on_output)
        return result

    async def follow_up(self, options: FollowUpOptions) -> Result:
        """Begin another episode in the session that is there."""
        request = RequestFrame("follow_up", follow_up_data(options))
        return reply_results.step_result(await self._session_client.ask(request))

    async def draft(self) -> JSON:
        """Return the present value of `answer["content"]`, or None."""
        found: JSON = (await self._session_client.ask(RequestFrame("draft"))).get("value")
        return found

    async def state(self) -> REPLState:
        """Return the episode so far."""
        return reply_results.state(await self._session_client.ask(RequestFrame("state")))

    async def variable_names(self) -> list[str]:
        """Return the names in the session."""
        if not self._session_client.require_pipeline().native:
            return (await self.state()).namespace_keys
        return list(map(str, await self._field(RequestFrame("variables"), "names", list)))

    async def rollback(self, cells: int) -> tuple[str, ...]:
        """Undo the last `cells` cells; return descriptions of what could not be restored."""
        request = RequestFrame("rollback", {"cells": plain_int(cells)})
        return tuple(map(str, await self._field(request, "lost", list)))

    async def branch(self, seed: int | None) -> SessionClient:
        """Return the client of a copy of the session."""
        request = RequestFrame("branch", {} if seed is None else {"seed": plain_int(seed)})
        token = await self._field(request, "token", str)
        return await self._session_client.new_sibling(token)

    async def _field(self, request: RequestFrame, name: str, kind: type[Any]) -> Any:
        return reply_results.field(await self._session_client.ask(request), name, kind)


async def _replay_output(result: Result, on_output: OutputCallback) -> None:
    printed = result.observation.result
    for stream, text in (("stdout", printed.stdout), ("stderr", printed.stderr)):
        returned = on_output(stream, text) if text else None
        if isawaitable(returned):
            await returned
