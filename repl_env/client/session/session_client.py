"""`SessionClient`: the current session of a client on a server, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol.client_frames import PLAIN, RequestFrame
from repl_env.client.upload.upload_body import LATEST, UploadBody
from repl_env.errors import NotReset, NotSupported, REPLError, ServerError, SessionLost, TooLarge

if TYPE_CHECKING:
    from repl_env.client.session.request_builder import ResetArguments
    from repl_env.client.session.request_pipeline import Hear, RequestPipeline
    from repl_env.client.upload.resumable_upload import OnUpload


class SessionClient:
    """The base of a client from its first request on; reusable after a close."""

    def __init__(self, access: ServerAccess, patience: Timeouts) -> None:
        self.access = access
        self._patience = patience
        self._asking: RequestPipeline | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()  # of that loop
        self._orphaned = False  # the previous session went with its loop
        self._uploaded: set[str] = set()

    @property
    def condition(self) -> str:
        """A word for a repr."""
        return "closed" if self._asking is None else "lost" if self._asking.lost else "open"

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs, if the server reported one."""
        told = None if self._asking is None else self._asking.told
        return None if told is None else told.session_id

    async def opened(self) -> RequestPipeline:
        """Return the session, or a new one if there is none."""
        from repl_env.client.session.session_opener import open_session

        self._check_loop()
        async with self._opening:
            if self._asking is not None and self._asking.lost:
                lost, self._asking = self._asking, None
                await lost.close()
            if self._asking is None:
                self._asking = await open_session(self.access, self._patience)
                self._orphaned = False
            return self._asking

    def present(self) -> RequestPipeline:
        """Return the session; NotReset if there is none, since a step begins none."""
        self._check_loop()
        if self._orphaned:
            raise SessionLost("the event loop of its connection has ended; keep to one loop")
        if self._asking is None:
            raise NotReset
        return self._asking

    async def ask(self, request: RequestFrame, hear: Hear | None = None) -> Mapping[str, Any]:
        """Return the data of the reply to `request`, in the current session."""
        asking = self.present()
        if not asking.named and request.type not in PLAIN:
            raise NotSupported(f"this server knows OpenEnv's requests alone, no {request.type!r}")
        return await asking.ask(request, hear)

    async def reset(
        self, arguments: ResetArguments, on_upload: OnUpload | None
    ) -> Mapping[str, Any]:
        """Return the data of the reply to a reset, in the current session or in a new one."""
        arguments.keep_in(self.access.secrets)
        asking = await self.opened()
        data, parcels = await arguments.data(named=asking.named)
        try:
            return await self._reset(asking, data, parcels, on_upload)
        except SessionLost:
            if self._asking is not asking:  # another user of this client closed it meanwhile
                raise
            # An episode needs nothing of the previous session, which is gone.
            return await self._reset(await self.opened(), data, parcels, on_upload)

    async def beside(self, token: str) -> SessionClient:
        """Return another client with the session that `token` names, kept as long as this one."""
        from repl_env.client.session.session_opener import resume_session

        told = None if self._asking is None else self._asking.told
        grace_s = 0.0 if told is None else told.grace_s
        other = SessionClient(self.access, self._patience)
        other._check_loop()
        other._asking = await resume_session(self.access, self._patience, token, grace_s)
        return other

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        LATEST.forget(lambda parcel: parcel.sha256 in self._uploaded)
        self._uploaded.clear()
        self._check_loop()
        self._orphaned = False
        async with self._opening:
            asking, self._asking = self._asking, None
            if asking is not None:
                await asking.close()

    async def _reset(
        self,
        asking: RequestPipeline,
        data: Mapping[str, Any],
        parcels: list[UploadBody],
        on_upload: OnUpload | None,
    ) -> Mapping[str, Any]:
        from repl_env.client.upload.resumable_upload import upload

        told = asking.told
        _check_sizes(parcels, None if told is None else told.context_bytes)
        for again in (True, False):
            if parcels:
                self._uploaded.update(parcel.sha256 for parcel in parcels)
                most_piece = None if told is None else told.message_bytes
                await upload(parcels, self.access, most_piece=most_piece, on_upload=on_upload)
            try:
                return await asking.ask(RequestFrame("reset", data))
            except ServerError as error:
                # An unused context may have to make room first.
                if error.code != "UNKNOWN_CONTEXT" or not again:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._orphaned, self._asking = self._orphaned or self._asking is not None, None
        elif self._asking is not None or self._opening.locked():
            raise REPLError(
                "this client has a connection in another event loop, or another process: use it "
                "in one alone, or `REPLEnv(...).sync()` in plain code"
            )
        self._loop, self._opening = loop, asyncio.Lock()


def _check_sizes(parcels: list[UploadBody], most: int | None) -> None:
    for parcel in parcels:
        if most is not None and parcel.size > most:
            raise TooLarge(f"{parcel.name} has {parcel.size:,} bytes; the server takes {most:,}")
