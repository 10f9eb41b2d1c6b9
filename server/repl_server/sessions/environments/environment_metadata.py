"""`MetadataCache`: what the environments of a server say about themselves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from repl_env.interfaces import EnvironmentMetadata

from ...protocol.error_mapping import safe_message, server_fault
from .environment_factory import EnvironmentFactory


class MetadataCache:
    """Asked of one environment, once, for all who want to know. It is made and closed for that."""

    def __init__(self, maker: EnvironmentFactory) -> None:
        self._maker = maker
        self._asking: asyncio.Task[EnvironmentMetadata] | None = None

    async def metadata(self) -> EnvironmentMetadata:
        """What it says.

        Raises:
            Refusal: FACTORY_ERROR; EXECUTION_ERROR, it raised; CAPACITY_REACHED or DRAINING, it
                bears no other and there is one.
        """
        asking = self._asking
        if asking is None or (asking.done() and _failed(asking)):
            asking = self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(asking)

    async def _ask(self) -> EnvironmentMetadata:
        async with AsyncExitStack() as undo:
            if self._maker.alone is not False:
                await self._maker.admission.enter()
                undo.callback(self._maker.admission.leave)
            environment, thread = await self._maker.make_or_refuse()
            undo.callback(thread.end)
            undo.push_async_callback(thread.do, environment.close)
            try:
                found = await thread.do(environment.get_metadata)
                return EnvironmentMetadata(**found.model_dump())
            # Boundary: what an environment of others raises is no fault of who asks.
            except Exception as error:  # noqa: BLE001
                told = f"the environment's metadata: {type(error).__name__}: {safe_message(error)}"
                raise server_fault("EXECUTION_ERROR", told, error) from None


def _failed(asking: asyncio.Task[Any]) -> bool:
    return asking.cancelled() or asking.exception() is not None
