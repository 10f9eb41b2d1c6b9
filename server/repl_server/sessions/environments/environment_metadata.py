"""`MetadataCache`: the metadata of a server's environments."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from repl_env.interfaces import EnvironmentMetadata

from ...protocol.error_mapping import safe_message, server_fault
from .environment_factory import EnvironmentFactory


class MetadataCache:
    """Creates one environment, reads its metadata for all clients, and closes the environment."""

    def __init__(self, factory: EnvironmentFactory) -> None:
        self._factory = factory
        self._pending: asyncio.Task[EnvironmentMetadata] | None = None

    async def metadata(self) -> EnvironmentMetadata:
        """The metadata.

        Raises:
            RequestError: FACTORY_ERROR; EXECUTION_ERROR, the environment raised; CAPACITY_REACHED
                or DRAINING, an exclusive environment is in use.
        """
        pending = self._pending
        if pending is None or (pending.done() and _failed(pending)):
            pending = self._pending = asyncio.create_task(self._fetch())
        return await asyncio.shield(pending)

    async def _fetch(self) -> EnvironmentMetadata:
        async with AsyncExitStack() as undo:
            if self._factory.exclusive is not False:
                await self._factory.admission.acquire()
                undo.callback(self._factory.admission.release)
            environment, thread = await self._factory.make_or_refuse()
            undo.callback(thread.end)
            undo.push_async_callback(thread.run, environment.close)
            try:
                found = await thread.run(environment.get_metadata)
                return EnvironmentMetadata(**found.model_dump())
            # Boundary: any error of a custom environment becomes the error of the request.
            except Exception as error:  # noqa: BLE001
                message = (
                    f"the environment's metadata: {type(error).__name__}: {safe_message(error)}"
                )
                raise server_fault("EXECUTION_ERROR", message, error) from None


def _failed(pending: asyncio.Task[Any]) -> bool:
    return pending.cancelled() or pending.exception() is not None
