"""`SessionClient`: the current session of a client on a server, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol.client_frames import PLAIN, RequestFrame
from repl_env.client.session.reset_data import register_secrets, reset_data
from repl_env.client.upload.upload_body import LATEST, UploadBody
from repl_env.errors import (
    CLOSED,
    NotReset,
    NotSupported,
    REPLError,
    ServerError,
    ServerUnavailable,
    SessionLost,
    TooLarge,
)

if TYPE_CHECKING:
    from repl_env.client.session.request_pipeline import OutputCallback, RequestPipeline
    from repl_env.client.upload.resumable_upload import OnUpload
    from repl_env.episode.call_options import ResetOptions


class SessionClient:
    """The base of a client from its first request on; reusable after a close."""

    def __init__(self, access: ServerAccess, timeouts: Timeouts) -> None:
        self.access = access
        self._timeouts = timeouts
        self._pipeline: RequestPipeline | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_lock = asyncio.Lock()  # of that loop
        self._loop_ended = False  # the previous session went with its loop
        self._closed = False  # by the caller, after the previous session
        self._uploaded: set[str] = set()

    @property
    def condition(self) -> str:
        """A word for a repr."""
        return "closed" if self._pipeline is None else "lost" if self._pipeline.lost else "open"

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs, if the server reported one."""
        handshake = None if self._pipeline is None else self._pipeline.handshake
        return None if handshake is None else handshake.session_id

    async def ensure_open(self) -> RequestPipeline:
        """Return the session, or a new one if there is none."""
        from repl_env.client.session.session_opener import open_session

        self._check_loop()
        async with self._open_lock:
            if self._pipeline is not None and self._pipeline.lost:
                lost_pipeline, self._pipeline = self._pipeline, None
                await lost_pipeline.close()
            if self._pipeline is None:
                self._pipeline = await open_session(self.access, self._timeouts)
                self._loop_ended = self._closed = False
            return self._pipeline

    def require_pipeline(self) -> RequestPipeline:
        """Return the session; NotReset if there is none, since a step begins none."""
        self._check_loop()
        if self._loop_ended:
            raise SessionLost("the event loop of its connection has ended; keep to one loop")
        if self._pipeline is None:
            raise NotReset(CLOSED) if self._closed else NotReset
        return self._pipeline

    async def ask(
        self, request: RequestFrame, on_output: OutputCallback | None = None
    ) -> Mapping[str, Any]:
        """Return the data of the reply to `request`, in the current session."""
        pipeline = self.require_pipeline()
        if not pipeline.native and request.type not in PLAIN:
            raise NotSupported(f"this server knows OpenEnv's requests alone, no {request.type!r}")
        return await pipeline.ask(request, on_output)

    async def reset(self, options: ResetOptions, on_upload: OnUpload | None) -> Mapping[str, Any]:
        """Return the data of the reply to a reset, in the current session or in a new one."""
        register_secrets(options, self.access.secrets)
        pipeline = await self.ensure_open()
        data, bodies = await reset_data(options, native=pipeline.native)
        try:
            return await self._reset(pipeline, data, bodies, on_upload)
        except (SessionLost, ServerUnavailable) as error:
            if self._pipeline is not pipeline:  # another user of this client closed it meanwhile
                raise
            if isinstance(error, ServerUnavailable) and error.code != "DRAINING":
                raise
            # An episode needs nothing of the previous session, which is gone or about to be closed.
            await self._drop(pipeline)
            return await self._reset(await self.ensure_open(), data, bodies, on_upload)

    async def new_sibling(self, token: str) -> SessionClient:
        """Return another client with the session that `token` names, kept as long as this one."""
        from repl_env.client.session.session_opener import resume_session

        handshake = None if self._pipeline is None else self._pipeline.handshake
        grace_s = 0.0 if handshake is None else handshake.grace_s
        other = SessionClient(self.access, self._timeouts)
        other._check_loop()
        other._pipeline = await resume_session(self.access, self._timeouts, token, grace_s)
        return other

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        LATEST.forget(lambda body: body.sha256 in self._uploaded)
        self._uploaded.clear()
        self._check_loop()
        self._loop_ended, self._closed = False, True
        async with self._open_lock:
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is not None:
                await pipeline.close()

    async def _drop(self, pipeline: RequestPipeline) -> None:
        async with self._open_lock:
            if self._pipeline is pipeline:
                self._pipeline = None
                await pipeline.close()

    async def _reset(
        self,
        pipeline: RequestPipeline,
        data: Mapping[str, Any],
        bodies: list[UploadBody],
        on_upload: OnUpload | None,
    ) -> Mapping[str, Any]:
        from repl_env.client.upload.resumable_upload import upload

        handshake = pipeline.handshake
        _check_sizes(bodies, None if handshake is None else handshake.context_bytes)
        for may_retry in (True, False):
            if bodies:
                self._uploaded.update(body.sha256 for body in bodies)
                max_chunk = None if handshake is None else handshake.message_bytes
                await upload(bodies, self.access, max_chunk=max_chunk, on_upload=on_upload)
            try:
                return await pipeline.ask(RequestFrame("reset", data))
            except ServerError as error:
                # An unused context may have to make room first.
                if error.code != "UNKNOWN_CONTEXT" or not may_retry:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._loop_ended, self._pipeline = self._loop_ended or self._pipeline is not None, None
        elif self._pipeline is not None or self._open_lock.locked():
            raise REPLError(
                "this client has a connection in another event loop, or another process: use it "
                "in one alone, or `REPLEnv(...).sync()` in plain code"
            )
        self._loop, self._open_lock = loop, asyncio.Lock()


def _check_sizes(bodies: list[UploadBody], max_bytes: int | None) -> None:
    for body in bodies:
        if max_bytes is not None and body.size > max_bytes:
            raise TooLarge(f"{body.name} has {body.size:,} bytes; the server takes {max_bytes:,}")
